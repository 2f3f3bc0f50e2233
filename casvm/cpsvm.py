"""CP-SVM (section 2.4): parts by K-means, one SVM per part, predictions by the model of the nearest centre.

The sizes of the parts are those of the clusters, so one large part may keep its rank busy long after the others.
Training costs and sends the same as CA-SVM. Partitioning sends K-means' Allreduces, and each row once.
"""

from casvm.methods import in_parts
from casvm.options import SVMMethod

METHOD = cpsvm = SVMMethod(
    name="cpsvm", summary="parts by K-means, of any size", trainer=in_parts, partitioner="kmeans"
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
