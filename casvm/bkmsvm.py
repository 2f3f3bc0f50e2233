"""BKM-SVM (section 2.4, Algorithm 4): balanced K-means, one SVM per part, predictions by the nearest centre's model.

After K-means, the farthest rows of parts that are too large move to the closest part that has room.
Training costs and sends the same as CA-SVM. Partitioning sends K-means' Allreduces, and each row once.
"""

from casvm.methods import in_parts
from casvm.options import SVMMethod

METHOD = bkmsvm = SVMMethod(name="bkmsvm", summary="parts by balanced K-means", trainer=in_parts, partitioner="bkm")

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
