"""BKM-SVM (section 2.4, Algorithm 4): parts by balanced K-means, one SVM a part, the nearest centre's answers.

K-means first; then the farthest rows of parts that are too large move to their closest part with room.
Training costs and sends what CA-SVM's does; partitioning, K-means' Allreduces and each row once.
"""

from casvm.methods import in_parts
from casvm.options import SVMMethod

METHOD = bkmsvm = SVMMethod(
    name="bkmsvm",
    summary="parts by balanced K-means",
    trainer=in_parts,
    partitioner="bkm",
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
