"""The examples on the pages of estimators, by class. The tests run them, all after the same rows."""

from __future__ import annotations

ROWS = """\
import numpy as np

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (400, 3))
y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=400)
labels = np.where(y > 0, "above", "below")
"""

PAIR = "sigma=[1, 2], lam=[1e-5, 1e-3]"

EXAMPLES = {
    "AutoKernelRegressor": """\
model = AutoKernelRegressor(max_time=60, random_state=0).fit(X, y)
model.leaderboard_[0]["candidate"], model.best_score_
model.predict(X[:5])""",
    "AutoKernelClassifier": """\
model = AutoKernelClassifier(max_time=60, probability=True, random_state=0).fit(X, labels)
model.predict(X[:5]), model.predict_proba(X[:5])""",
    "RandomPartition": """\
parts = RandomPartition(n_parts=4, random_state=0).fit(X)
parts.labels_, parts.sizes_  # 100 rows per part""",
    "FCFS": """\
parts = FCFS(n_parts=4, ratio=True, random_state=0).fit(X, y > 0)
parts.sizes_, parts.predict(X[:5])  # as many rows of each class in each part""",
    "KMeans": """\
parts = KMeans(n_parts=4, random_state=0).fit(X)
parts.sizes_, parts.centers_, parts.n_iter_""",
    "BalancedKMeans": """\
parts = BalancedKMeans(n_parts=4, random_state=0).fit(X)
parts.sizes_, parts.centers_""",
    "KBalance": """\
parts = KBalance(n_parts=4, random_state=0).fit(X)
parts.sizes_, parts.predict(X[:5])""",
    "BKRR2": f"""\
model = BKRR2(n_parts=4, {PAIR}, calibrate=0.2).fit(X, y)
model.sigma_, model.lam_  # chosen on held-out rows
lower, upper = model.predict_interval(X[:5], coverage=0.9)""",
    "KKRR2": f"""\
model = KKRR2(n_parts=4, {PAIR}, random_state=0).fit(X, y)
model.sizes_, model.predict(X[:5])""",
    "DCKRR": f"""\
model = DCKRR(n_parts=4, {PAIR}, random_state=0).fit(X, y)
model.score(X, y)""",
    "BKRR": f"""\
model = BKRR(n_parts=4, {PAIR}, random_state=0).fit(X, y)
model.score(X, y)""",
    "KKRR": f"""\
model = KKRR(n_parts=4, {PAIR}, random_state=0).fit(X, y)
model.score(X, y)""",
    "TwoLevelKRR": f"""\
model = TwoLevelKRR(n_parts=4, centers=100, {PAIR}, random_state=0).fit(X, y)
model.params_, model.predict(X[:5])""",
    "DKRR": f"""\
model = DKRR({PAIR}, random_state=0).fit(X, y)
mean, deviation = model.predict(X[:5], return_std=True)""",
    "SubsetKRR": """\
model = SubsetKRR(centers=100, sigma=1.0, lam=1e-6, random_state=0).fit(X, y)
model.predict(X[:5])""",
    "Kriging": """\
places, depth = X[:, :2], np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
model = Kriging(kernel="matern32", range=1.0, nugget=0.01, sill=1.0).fit(places, depth)
mean, deviation = model.predict(places[:5], return_std=True)""",
    "BKRR2Classifier": f"""\
model = BKRR2Classifier(n_parts=4, {PAIR}, probability=True).fit(X, labels)
model.classes_, model.predict_proba(X[:5])""",
    "KKRR2Classifier": f"""\
model = KKRR2Classifier(n_parts=4, {PAIR}, random_state=0).fit(X, labels)
model.score(X, labels)""",
    "DCKRRClassifier": f"""\
model = DCKRRClassifier(n_parts=4, {PAIR}, random_state=0).fit(X, labels)
model.score(X, labels)""",
    "BKRRClassifier": f"""\
model = BKRRClassifier(n_parts=4, {PAIR}, random_state=0).fit(X, labels)
model.score(X, labels)""",
    "KKRRClassifier": f"""\
model = KKRRClassifier(n_parts=4, {PAIR}, random_state=0).fit(X, labels)
model.score(X, labels)""",
    "TwoLevelKRRClassifier": f"""\
model = TwoLevelKRRClassifier(n_parts=4, centers=100, {PAIR}, random_state=0).fit(X, labels)
model.decision_function(X[:5])""",
    "DKRRClassifier": f"""\
model = DKRRClassifier({PAIR}, random_state=0).fit(X, labels)
model.score(X, labels)""",
    "SubsetKRRClassifier": """\
model = SubsetKRRClassifier(centers=100, random_state=0).fit(X, labels)
model.predict_proba(X[:5])""",
    "SMOSVC": """\
model = SMOSVC(C=[1, 10], gamma=[0.1, 1]).fit(X, labels)
model.best_params_, model.n_support_, model.score(X, labels)""",
    "SMONuSVC": """\
model = SMONuSVC(nu=0.2, gamma=0.5).fit(X, labels)
model.score(X, labels)""",
    "SMOSVR": """\
model = SMOSVR(C=10, epsilon=0.1, gamma=0.5).fit(X, y)
model.predict(X[:5]), len(model.support_)""",
    "SMONuSVR": """\
model = SMONuSVR(nu=0.5, C=10, gamma=0.5).fit(X, y)
model.epsilon_  # found by the solver""",
    "SMOOneClassSVM": """\
model = SMOOneClassSVM(nu=0.1, gamma=0.5).fit(X)
model.predict([[0, 0, 0], [9, 9, 9]])  # 1, and -1 for the outlier""",
    "CASVC": """\
model = CASVC(n_parts=4, C="grid", gamma="grid", route="soft", random_state=0).fit(X, labels)
model.best_params_, model.sizes_, model.score(X, labels)""",
    "CASVR": """\
model = CASVR(n_parts=4, C=10, epsilon=0.1, gamma=0.5, random_state=0).fit(X, y)
model.sizes_, model.predict(X[:5])""",
    "SMOQuantileSVR": """\
model = SMOQuantileSVR(quantile=[0.1, 0.5, 0.9], C=10, gamma=0.5).fit(X, y)
model.predict(X[:5])  # three columns, which do not cross""",
    "CAQuantileSVR": """\
model = CAQuantileSVR(n_parts=2, quantile=[0.1, 0.9], C=10, gamma=0.5, random_state=0).fit(X, y)
model.predict(X[:5])""",
    "DisSMOSVC": """\
from mpi4py import MPI

model = DisSMOSVC(C=10, gamma=0.5, comm=MPI.COMM_WORLD)
model.fit(X, labels)  # each rank gives its own rows
model.score(X, labels)""",
    "DisSMOSVR": """\
model = DisSMOSVR(C=10, epsilon=0.1, gamma=0.5).fit(X, y)
model.predict(X[:5])""",
    "DCSVC": """\
model = DCSVC(n_parts=4, C=10, gamma=0.5, random_state=0).fit(X, labels)
model.layers_  # the problems of each layer""",
    "DCFilterSVC": """\
model = DCFilterSVC(n_parts=4, C=10, gamma=0.5, random_state=0).fit(X, labels)
model.score(X, labels)""",
    "CascadeSVC": """\
model = CascadeSVC(n_parts=4, passes=2, C=10, gamma=0.5, random_state=0).fit(X, labels)
model.score(X, labels)""",
    "AsyGCDSVC": """\
model = AsyGCDSVC(C=10, gamma=0.5).fit(X, labels)
model.score(X, labels)""",
}


def program(name: str, package: str) -> str:
    """The whole example of a class, to be run."""
    return f"{ROWS}\nfrom {package} import {name}\n\n{EXAMPLES[name]}\n"
