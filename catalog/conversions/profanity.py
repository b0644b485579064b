"""Conversion of the model of `alt-profanity-check` to safetensors: TF-IDF and five calibrated linear models.

The package has the model as two joblib files of scikit-learn. Only their data is read: none of its classes is created
and no code of the files runs.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from catalog.conversions.tensorflow_js import save
from catalog.errors import PullError

_LABELS = ("CLEAN", "OFFENSIVE")
_DATA: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "float64"): np.float64,
    ("numpy._core.multiarray", "scalar"): lambda dtype, data: np.frombuffer(data, dtype)[0],
}


def convert(sources: Path, model_dir: Path) -> None:
    """Write `model.safetensors`, `words.json` and `labels.json` from `vectorizer.joblib` and `model.joblib`. Raises
    PullError or OSError."""
    vectorizer, model = (_read(sources / name) for name in ("vectorizer.joblib", "model.joblib"))
    try:
        tables = [each["estimator"] | each["calibrators"][0] for each in model["calibrated_classifiers_"]]
        names = {"coefficients": "coef_", "intercepts": "intercept_", "slopes": "a_", "offsets": "b_"}
        tensors = {name: np.stack([np.squeeze(table[key]) for table in tables]) for name, key in names.items()}
        tensors["idf"] = vectorizer["_tfidf"]["idf_"]
        words = sorted(vectorizer["vocabulary_"], key=vectorizer["vocabulary_"].__getitem__)
    except (KeyError, TypeError, ValueError) as error:
        raise PullError(f"the package does not contain the model that this conversion knows ({error!r})") from None
    save(tensors, model_dir)
    (model_dir / "words.json").write_text(json.dumps(words))
    (model_dir / "labels.json").write_text(json.dumps(_LABELS))


def _read(path: Path) -> dict[str, Any]:
    """Return the attributes of the object in a joblib file, as dicts. Raises PullError."""
    try:
        found: dict[str, Any] = _Reader(io.BytesIO(path.read_bytes())).load()
    except (pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError, EOFError, AttributeError) as error:
        raise PullError(f"{path.name} cannot be read: {error}") from None
    return found


class _Attributes(dict[str, Any]):
    """An object as the dict of its attributes."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.update(state)


class _Array(_Attributes):
    """Precedes the bytes of an array in a joblib file."""


class _Reader(pickle._Unpickler):  # the one in C cannot read arrays in between
    """Reads objects as their attributes, and arrays from the bytes that follow them."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    stack: list[Any]

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._file = file

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("joblib.numpy_pickle", "NumpyArrayWrapper"):
            return _Array
        if module.startswith("sklearn."):
            return _Attributes
        if (module, name) in _DATA:
            return _DATA[module, name]
        raise pickle.UnpicklingError(f"{module}.{name} is not data")

    def _build(self) -> None:
        pickle._Unpickler.load_build(self)  # type: ignore[attr-defined]
        if isinstance(self.stack[-1], _Array):
            self.stack[-1] = self._read_array(self.stack[-1])

    dispatch[pickle.BUILD[0]] = _build

    def _read_array(self, wrapper: _Array) -> np.ndarray:
        if wrapper["dtype"].hasobject:
            raise pickle.UnpicklingError("arrays of objects are not data")
        padding = self._file.read(1)[0]
        self._file.read(padding)
        count = int(np.prod(wrapper["shape"]))
        data = self._file.read(count * wrapper["dtype"].itemsize)
        return np.frombuffer(data, wrapper["dtype"]).reshape(wrapper["shape"], order=wrapper["order"])
