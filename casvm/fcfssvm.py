"""FCFS-SVM (section 2.4, Algorithm 3): first come, first served parts, one SVM per part.

Random rows serve as centres; each row in turn goes to the closest centre that still has room. A new row is predicted by
the model of the nearest centre. Training costs and sends the same as CA-SVM. Partitioning sends each row once, and a
few Allreduces of counts.
"""

from casvm.methods import in_parts
from casvm.options import SVMMethod

METHOD = fcfssvm = SVMMethod(
    name="fcfssvm", summary="first come, first served parts", trainer=in_parts, partitioner="fcfs"
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
