"""Download the large public data sets from their owners' servers, and convert them to HDF5.

python -m benchmarks.fetch list
python -m benchmarks.fetch NAME FOLDER [--url ADDRESS] [--keep-text]

An interrupted download is resumed. The SHA-256 of a file is compared with the published one. If none is published,
FOLDER/SHA256SUMS stores that of the first download (in the format of `sha256sum --check`): this detects later changes,
and the numbers of rows and features are checked as well. Downloading needs disk space for the text and the HDF5 file;
converting needs memory for the rows, and an error says how much if there is too little.
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
        Addresses of the training rows or all rows, and of the test rows if they are a separate file.
    rows, features : int
        Expected numbers in the converted file.
    convert : tuple of str
        Options of ``python -m cacore.io convert``.
    sums : tuple of str
        Published SHA-256 of each file, or empty.
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
    """Download a file, resuming from PATH.part if an earlier attempt left it.

    Raises
    ------
    InputError
        The server cannot be reached, or sent fewer bytes than announced.
    """
    part = path.with_name(path.name + ".part")
    there = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={there}-"} if there else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            goes_on = answer.status == 206  # otherwise the server sends the whole file again
            there = there if goes_on else 0
            length = answer.headers.get("Content-Length")
            with part.open("ab" if goes_on else "wb") as file:
                while piece := answer.read(_CHUNK):
                    file.write(piece)
            got = part.stat().st_size
            if length is not None and got != there + int(length):
                raise InputError(
                    f"{url}: received {got:,} bytes of {there + int(length):,}; run the command again to resume"
                )
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: there are no further bytes, so the file is complete
            raise InputError(f"{url}: {error}; name another address with --url") from error
    except OSError as error:
        raise InputError(f"{url}: {error}; run the command again to resume, or name another with --url") from error
    part.replace(path)


def verify(path: Path, published: str) -> str:
    """Compare a file with its checksum; return a sentence that describes the result.

    Raises
    ------
    InputError
        The checksums differ.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    sums = path.with_name(SUMS)
    lines = sums.read_text().splitlines() if sums.exists() else []
    kept = {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}
    known = published or kept.get(path.name, "")
    if known and found != known:
        whose = "published one" if published else f"one in {sums}"
        raise InputError(
            f"{path}: its SHA-256 is {found}, but the {whose} is {known}: remove the file and fetch it again"
        )
    if path.name not in kept:
        with replacing(sums) as temporary:
            temporary.write_text("\n".join([*lines, f"{found}  {path.name}"]) + "\n")
    if known:
        return f"{path}: SHA-256 as {'published' if published else 'in the first download'}"
    return f"{path}: SHA-256 {found} stored in {sums}; none is published for comparison"


def fetch(name: str, folder: Path, url: str | None = None, keep: bool = False) -> Path:
    """Download, verify and convert a data set, and check its size; return the path of the HDF5 file.

    Raises
    ------
    InputError
        One of these steps failed.
    """
    source, out = SETS[name], folder / f"{name}.h5"
    if url is not None and len(source.urls) > 1:
        raise InputError(
            f"--url: {name} has {len(source.urls)} files; put them into {folder} under their names instead"
        )
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
    shapes = native.NativeFile(out).describe()
    rows, features = sum(shape.n for shape in shapes.values()), {shape.d for shape in shapes.values()}
    if rows != source.rows or features != {source.features}:
        found = f"{rows:,} rows of {', '.join(map(str, sorted(features)))} features"
        out.unlink()
        raise InputError(f"{name}: {found}, but {source.rows:,} rows of {source.features} were expected; file removed")
    if not keep:
        for path in paths:
            path.unlink()
    return out


def main() -> None:
    """Run the command; print an error as one line, with status 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=["list", *SETS])
    parser.add_argument("folder", type=Path, nargs="?", help="folder for the files")
    parser.add_argument("--url", help="another address for the same file")
    parser.add_argument("--keep-text", action="store_true", help="keep the downloaded text files")
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
