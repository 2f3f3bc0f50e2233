"""Estimators and models keep the names of a DataFrame's columns: other names, or another order, are not mistaken."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from helpers.columns import draw, write_columns
from helpers.commands import flat, predicted, run
from helpers.data import sealed

from asygcd import AsyGCDSVC
from asygcd.asygcd_model import AsyGCDModel
from cacore.errors import InputError
from cacore.run import figures
from cakrr import BKRR2, DKRR, BKRR2Classifier
from cakrr.ridge_model import KRRModel
from casvm import CASVC, CASVR, SMOSVC, SMOSVR, SMOOneClassSVM
from casvm.model.svm_model import SVMModel
from casvm.model.svr_model import SVRModel
from partition import KBalance

pd = pytest.importorskip("pandas")

TABLE = pd.DataFrame(draw(60))
X, Y = TABLE[["a", "b", "c"]], TABLE["y"]
KINDS = (Y > 0).astype(int).rename("kind")
ESTIMATORS = {
    "CASVC": (CASVC(n_parts=2), KINDS), "SMOSVC": (SMOSVC(), KINDS), "AsyGCDSVC": (AsyGCDSVC(threads=1), KINDS),
    "BKRR2Classifier": (BKRR2Classifier(n_parts=2), KINDS), "BKRR2": (BKRR2(n_parts=2), Y), "DKRR": (DKRR(), Y),
    "CASVR": (CASVR(n_parts=2), Y), "SMOSVR": (SMOSVR(), Y), "SMOOneClassSVM": (SMOOneClassSVM(), None),
    "KBalance": (KBalance(n_parts=2), None),
}  # fmt: skip
MODELS = {
    "SMOSVC": (SVMModel, "casvm"), "SMOSVR": (SVRModel, "casvm"), "AsyGCDSVC": (AsyGCDModel, "asygcd"),
    "DKRR": (KRRModel, "cakrr"),
}  # fmt: skip


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators(name):
    estimator, y = ESTIMATORS[name]
    estimator.fit(X, y)
    assert list(estimator.feature_names_in_) == ["a", "b", "c"]
    for other in (X[["b", "a", "c"]], X.rename(columns={"a": "z"})):
        with pytest.raises(ValueError, match="feature names should match"):
            estimator.predict(other)
    if name != "KBalance":
        target = [] if y is None else [y.name]
        kept = {"features": ["a", "b", "c"], "target": target, "kinds": "fff"}
        assert estimator.model_.source["columns"] == kept


@pytest.mark.parametrize("name", ["SMOSVC", "SMOSVR", "SMOOneClassSVM"])
def test_arrays_after_data_frames(name):
    """Plain arrays, which need no check by scikit-learn, leave an estimator as that check would."""
    estimator, y = ESTIMATORS[name]
    array, target = np.array(X), None if y is None else np.array(y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        wanted = estimator.fit(X, y).predict(array)
    estimator.fit(array, target)
    assert not hasattr(estimator, "feature_names_in_")
    assert estimator.n_features_in_ == 3
    np.testing.assert_array_equal(estimator.predict(array), wanted)
    with pytest.warns(UserWarning, match="X has feature names, but"):
        estimator.predict(X)
    for wrong, match in ((array[:, :2], "X has 2 features"), (array * [1, np.nan, 1], "NaN"), (array[:0], "0 sample")):
        with pytest.raises(ValueError, match=match):
            estimator.predict(wrong)
    if y is not None:
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            estimator.fit(array, target[:-1])


@pytest.mark.parametrize("name", MODELS)
def test_saved_models_of_data_frames(name, tmp_path, refuses):
    """The command matches their names; in Python a DataFrame in another order is refused."""
    (estimator, y), (kind, package) = ESTIMATORS[name], MODELS[name]
    wanted = estimator.fit(X, y).predict(X)
    estimator.model_.save(tmp_path / "m.h5")
    write_columns(tmp_path / "t.csv", draw(60), ("c", "b", "a"))
    run(f"{package}.predict", [tmp_path / "m.h5", tmp_path / "t.csv", "-o", tmp_path / "p.csv", "--quiet"])
    np.testing.assert_allclose(predicted(tmp_path / "p.csv"), wanted, rtol=1e-12)
    write_columns(tmp_path / "t.csv", draw(60), ("c", "b"))
    refuses(f"{package}.predict", ["m.h5", "t.csv"], "t.csv: no column a, which the model m.h5 has", tmp_path)
    model = kind.load(tmp_path / "m.h5")
    assert model.source["columns"]["features"] == ["a", "b", "c"]
    np.testing.assert_allclose(model.predict(X), wanted, rtol=1e-12)
    with pytest.raises(InputError, match="X, column 0: 'b', and 'a' in the model"):
        model.predict(X[["b", "a", "c"]])


def test_models_of_arrays_have_no_names(tmp_path):
    """Their files are as they were, and take files of any names, whose columns count by their place."""
    model = DKRR(sigma=1.0, lam=1e-6).fit(X.to_numpy(), Y.to_numpy()).model_
    model.save(tmp_path / "m.h5")
    assert "columns" not in KRRModel.load(tmp_path / "m.h5").source
    write_columns(tmp_path / "t.csv", draw(60), ("b", "a", "c"))
    run("cakrr.predict", [tmp_path / "m.h5", tmp_path / "t.csv", "-o", tmp_path / "p.csv", "--quiet"])
    swapped = model.predict(X[["b", "a", "c"]].to_numpy())
    np.testing.assert_allclose(predicted(tmp_path / "p.csv"), swapped, rtol=1e-12)


@pytest.mark.parametrize(
    "columns",
    [3, {"features": ["a"], "target": [], "kinds": ""}, {"features": [1, 2, 3], "target": [], "kinds": ""}, {}],
)
def test_damaged_names(columns, tmp_path):
    DKRR(sigma=1.0, lam=1e-6).fit(X, Y).model_.save(tmp_path / "m.h5")
    with sealed(tmp_path / "m.h5") as file:
        file.attrs["columns 0"] = json.dumps(columns)
    with pytest.raises(InputError, match="columns"):
        KRRModel.load(tmp_path / "m.h5")


def test_importances_have_names(tmp_path, capfd):
    """In the report, the table and the picture; numbers where there are none."""
    pytest.importorskip("matplotlib")
    write_columns(tmp_path / "t.csv", draw(150) | {"$p_q": draw(150, 3)["a"]}, ("c", "$p_q", "a", "b", "y"))
    words = ["--metric", "full", "--metric-rounds", "2", "--partitions", "1"]
    files = ["--report", tmp_path / "r.json", "--plot", tmp_path / "f.png"]
    run("cakrr.bkrr2", [tmp_path / "t.csv", *words, *files])
    told, report = flat(capfd.readouterr().out), json.loads((tmp_path / "r.json").read_text())
    assert "most important features: a (0." in told
    assert report["metric"]["names"] == ["c", "$p_q", "a", "b"]
    assert report["data"]["columns"]["target"] == ["y"]
    labels = {"named": report["metric"], "bare": {k: v for k, v in report["metric"].items() if k != "names"}}
    for name, found in labels.items():
        axes = figures.metric(found, None).axes[0]
        first = axes.get_yticklabels()[0].get_text()
        assert first == ("a" if name == "named" else "2")
    figures.save(figures.metric(report["metric"], None), tmp_path / "g.png")


def test_old_models(tmp_path):
    """A model file without names answers as before."""
    estimator = DKRR(sigma=1.0, lam=1e-6).fit(X, Y)
    estimator.model_.save(tmp_path / "m.h5")
    with sealed(tmp_path / "m.h5") as file:
        assert "columns" not in json.loads(file.attrs["attributes"])["source"]  # what older versions read
        del file.attrs["columns 0"]
    with h5py.File(tmp_path / "m.h5") as file:
        assert set(file) == {"centers", "sizes", "mean", "scale", "parts"}
    np.testing.assert_array_equal(KRRModel.load(tmp_path / "m.h5").predict(X.to_numpy()), estimator.predict(X))
