"""CP-SVM (section 2.4): parts by K-means, one SVM a part, the nearest centre's answers.

The parts are as large as the clusters are, so that one may keep its rank busy long after the others.
Training costs and sends what CA-SVM's does; partitioning, K-means' Allreduces and each row once.
"""

from casvm.methods import in_parts
from casvm.options import SVMMethod

METHOD = cpsvm = SVMMethod(
    name="cpsvm",
    summary="parts by K-means, of whatever size",
    trainer=in_parts,
    partitioner="kmeans",
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
