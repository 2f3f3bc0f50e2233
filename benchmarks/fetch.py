"""The large public data sets, fetched from their owners' servers onto this machine and converted to HDF5.

python -m benchmarks.fetch list
python -m benchmarks.fetch NAME FOLDER [--url ADDRESS] [--keep-text]

A download that was interrupted goes on where it ended. Its SHA-256 is compared with the one that is known; where the
publisher names none, FOLDER/SHA256SUMS keeps that of the first download (as `sha256sum --check` reads it), which shows
later changes, but not that the first was right: the numbers of rows and features are checked for that. Fetching needs
disk space for the text and the HDF5 file; converting needs memory for the rows, and says how much if there is less.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from cacore.errors import InputError
from cacore.files import replacing
from cacore.io import native
from cacore.io.__main__ import main as cacore_io

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"
SUMS = "SHA256SUMS"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Source:
    """A data set.

    Attributes
    ----------
    urls : tuple of str
        Of the training rows, or of all; then of the test rows, where they are apart.
    rows, features : int
        Of all that is to come out.
    convert : tuple of str
        Options of ``python -m cacore.io convert``.
    sums : tuple of str
        SHA-256 of each file, where somebody has published it; empty where not.
    """

    urls: tuple[str, ...]
    rows: int
    features: int
    convert: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()


SETS = {
    "YearPredictionMSD": Source(
        (f"{LIBSVM}/regression/YearPredictionMSD.bz2", f"{LIBSVM}/regression/YearPredictionMSD.t.bz2"), 515_345, 90
    ),
    "SUSY": Source((f"{UCI}/00279/SUSY.csv.gz",), 5_000_000, 18, ("--target", "0", "--split", "4500000")),
    "HIGGS": Source(
        (f"{UCI}/00280/HIGGS.csv.gz",), 11_000_000, 28, ("--target", "0", "--split", "10500000", "--dtype", "float32"),
        ("ea302c18164d4e3d916a1e2e83a9a8d07069fa6ebc7771e4c0540d54e593b698",),  # of Ludwig's and TensorFlow's data sets
    ),
    "covtype": Source(
        (f"{UCI}/covtype/covtype.data.gz",), 581_012, 54, ("--binarize", "2", "--split", "522910"),
        ("614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",),  # scikit-learn's fetch_covtype
    ),
    "webspam": Source(
        (f"{LIBSVM}/binary/webspam_wc_normalized_unigram.svm.xz",), 350_000, 254, ("--split", "280000")
    ),
}  # fmt: skip


def download(url: str, path: Path) -> None:
    """Fetch a file; PATH.part has what an earlier attempt left.

    Raises
    ------
    InputError
        The server cannot be reached, or has sent fewer bytes than it said.
    """
    part = path.with_name(path.name + ".part")
    there = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={there}-"} if there else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            goes_on = answer.status == 206  # else the server sends all of it again
            there = there if goes_on else 0
            length = answer.headers.get("Content-Length")
            with part.open("ab" if goes_on else "wb") as file:
                while piece := answer.read(_CHUNK):
                    file.write(piece)
            got = part.stat().st_size
            if length is not None and got != there + int(length):
                raise InputError(
                    f"{url}: {got:,} bytes of {there + int(length):,} came; run the command again to go on"
                )
    except urllib.error.HTTPError as error:
        if error.code != 416:  # nothing after what is there: it was complete
            raise InputError(f"{url}: {error}; name another address with --url") from error
    except OSError as error:
        raise InputError(f"{url}: {error}; run the command again to go on, or name another with --url") from error
    part.replace(path)


def verify(path: Path, published: str) -> str:
    """Compare a file with its checksum; what was compared.

    Raises
    ------
    InputError
        It has another one.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    sums = path.with_name(SUMS)
    lines = sums.read_text().splitlines() if sums.exists() else []
    kept = {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}
    known = published or kept.get(path.name, "")
    if known and found != known:
        whose = "published" if published else f"kept in {sums}"
        raise InputError(
            f"{path}: its SHA-256 is {found}, and the one {whose} is {known}: remove it and fetch it again"
        )
    if path.name not in kept:
        with replacing(sums) as temporary:
            temporary.write_text("\n".join([*lines, f"{found}  {path.name}"]) + "\n")
    if known:
        return f"{path}: SHA-256 as {'published' if published else 'at the first download'}"
    return f"{path}: SHA-256 {found} kept in {sums}; nobody has published one to compare it with"


def fetch(name: str, folder: Path, url: str | None = None, keep: bool = False) -> Path:
    """Download, verify, convert, and count; the HDF5 file.

    Raises
    ------
    InputError
        Any of these went wrong.
    """
    source, out = SETS[name], folder / f"{name}.h5"
    if url is not None and len(source.urls) > 1:
        raise InputError(f"--url: {name} has {len(source.urls)} files; put them into {folder} by their names instead")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, address in enumerate(source.urls):
        paths.append(folder / address.rpartition("/")[2])
        if not paths[-1].exists():
            print(f"{url or address} to {paths[-1]}", flush=True)
            download(url or address, paths[-1])
        print(verify(paths[-1], source.sums[number] if source.sums else ""), flush=True)
    test = ["--test", str(paths[1])] if len(paths) > 1 else []
    cacore_io(["convert", str(paths[0]), str(out), *test, *source.convert])
    shapes = native.describe(out)
    rows, features = sum(shape.n for shape in shapes.values()), {shape.d for shape in shapes.values()}
    if rows != source.rows or features != {source.features}:
        found = f"{rows:,} rows of {', '.join(map(str, sorted(features)))} features"
        out.unlink()
        raise InputError(f"{name}: {found} came, and {source.rows:,} of {source.features} were expected: not kept")
    if not keep:
        for path in paths:
            path.unlink()
    return out


def main() -> None:
    """The command; status 2 and one line where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=["list", *SETS])
    parser.add_argument("folder", type=Path, nargs="?", help="where the files go")
    parser.add_argument("--url", help="another address of the same file")
    parser.add_argument("--keep-text", action="store_true", help="keep what was downloaded, too")
    args = parser.parse_args()
    if args.name == "list":
        for name, source in SETS.items():
            print(f"{name}: {source.rows:,} x {source.features}, {' and '.join(source.urls)}")
        return
    if args.folder is None:
        parser.error("name a folder")
    try:
        print(fetch(args.name, args.folder, args.url, args.keep_text))
    except InputError as error:
        print(f"benchmarks.fetch: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
