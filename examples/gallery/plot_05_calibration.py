"""
Calibrated probabilities
========================

Decisions of an SVM are no probabilities. ``probability=True`` fits a sigmoid to decisions on held-out rows;
``"isotonic"`` fits a step function. On the diagonal, events are as frequent as predicted.
"""

import matplotlib.pyplot as plt
from sklearn.calibration import calibration_curve
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss

from casvm import CASVC

X, labels = make_classification(
    6000, 10, n_informative=5, flip_y=0.15, class_sep=0.7, random_state=0
)
figure, panel = plt.subplots(figsize=(6, 5), layout="constrained")
panel.plot([0, 1], [0, 1], color="0.7")
for form, color in (("sigmoid", "#2166ac"), ("isotonic", "#d95f02")):
    model = CASVC(n_parts=4, C=1, gamma=0.05, probability=form, random_state=0).fit(
        X[:3000], labels[:3000]
    )
    probability = model.predict_proba(X[3000:])[:, 1]
    observed, predicted = calibration_curve(labels[3000:], probability, n_bins=12)
    panel.plot(
        predicted,
        observed,
        "o-",
        color=color,
        label=f"{form}: log loss {log_loss(labels[3000:], probability):.3f}",
    )
panel.set(
    xlabel="predicted probability", ylabel="share that was true", aspect="equal"
)
panel.legend(loc="upper left", frameon=False)
plt.show()
