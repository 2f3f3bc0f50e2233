"""
A map with its uncertainty, by kriging
======================================

``Kriging`` predicts a field from values at points, with a standard deviation everywhere: small near the points, large
under the clouds that hid some of them. ``simulate`` draws fields that agree with the values; each is as rough as the
field itself, which the mean is not. The kernel is tapered, so that only near points count.
"""

import matplotlib.pyplot as plt
import numpy as np

from cakriging import Kriging

rng = np.random.default_rng(0)
waves = (
    rng.standard_normal((2000, 2))
    / 0.06
    * np.sqrt(3 / rng.chisquare(3, 2000))[:, None]
)  # a matern32 field:
shift = rng.uniform(0, 2 * np.pi, 2000)  # its range is .06, its sill 1


def truth(Z):
    return np.cos(Z @ waves.T + shift).mean(axis=1) * np.sqrt(4000)


X = rng.random((3000, 2))
clouds = [(0.25, 0.7, 0.13), (0.7, 0.35, 0.17), (0.6, 0.8, 0.09)]
X = X[
    np.all([np.hypot(X[:, 0] - x, X[:, 1] - y) > r for x, y, r in clouds], axis=0)
]
y = truth(X) + 0.1 * rng.normal(size=len(X))

model = Kriging(kernel="matern32", taper=0.4, solver="cg", random_state=0).fit(X, y)
print(
    f"range {model.range_:.3f}, sill {model.sill_:.2f}, nugget {model.nugget_:.4f}"
    "; true ones: 0.06, 1, 0.01"
)

# %%
# The map, from left to right: the values, the mean, its standard deviation without that of the noise, and a draw.

side = np.linspace(0, 1, 90)
places = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
mean, std = model.predict(places, return_std=True)
draw = model.simulate(places, 1, random_state=1)[0]
std = np.sqrt(std**2 - model.nugget_)

figure, panels = plt.subplots(
    1, 4, figsize=(16, 4), sharey=True, layout="constrained"
)
panels[0].scatter(*X.T, c=y, s=3, vmin=-2.5, vmax=2.5)
panels[0].set_title("values", fontsize=10)
for panel, values, title in zip(
    panels[1:],
    (mean, std, draw),
    ("mean", "standard deviation", "a draw"),
    strict=True,
):
    limits = (
        {"vmin": 0, "cmap": "magma_r"}
        if title == "standard deviation"
        else {"vmin": -2.5, "vmax": 2.5}
    )
    image = panel.imshow(
        values.reshape(90, 90), origin="lower", extent=(0, 1, 0, 1), **limits
    )
    panel.set_title(title, fontsize=10)
    figure.colorbar(image, ax=panel, shrink=0.8)
plt.show()

# %%
# Errors over standard deviations are nearly standard normal: about 95 % of the true values lie within 1.96 of them.

error = truth(places) - mean
print(
    f"RMSE {np.sqrt(np.mean(error**2)):.3f}, within 1.96 standard deviations: "
    f"{np.mean(np.abs(error) < 1.96 * std):.1%}"
)
