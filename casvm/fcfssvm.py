"""FCFS-SVM (section 2.4, Algorithm 3): first come, first served parts, one SVM a part, the nearest centre's answers.

Random rows are the centres; each row in turn goes to the closest centre that still has room.
Training costs and sends what CA-SVM's does; partitioning, each row once and a few Allreduces of counts.
"""

from casvm.methods import in_parts
from casvm.options import SVMMethod

METHOD = fcfssvm = SVMMethod(
    name="fcfssvm",
    summary="first come, first served parts",
    trainer=in_parts,
    partitioner="fcfs",
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
