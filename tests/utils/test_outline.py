"""Reading the fields of a class without importing its module."""

import dataclasses
import sys
from typing import get_type_hints

import pytest

from hf_tlm.utils.lazy import outline

FILES = {
    "__init__": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy_outline.heavy import Train as Exported\n",
    "light": "CHOICES = ('a', 'b')\n",
    "base": (
        "import json as codec\nfrom dataclasses import dataclass, field\nfrom elsewhere import Heavy\nimport other.thing\n"
        "raise ImportError('this module is read only')\n"
        "@dataclass\nclass Base(Heavy, other.thing.Mixin):\n"
        "    '''What it is.\n\n    And more.\n    '''\n"
        "    first: int = 1 << 4\n"
        "    moved: str | None = None\n"
        "    text: str = codec.dumps([1])\n"
    ),
    "heavy": (
        "from __future__ import annotations\n"
        "from dataclasses import dataclass, field\nfrom typing import ClassVar\n"
        "from toy_outline.base import Base\nfrom toy_outline import light\nfrom toy_outline.light import CHOICES\n"
        "LONGEST = 100\nNAMES = [f'{name}{LONGEST}' for name in CHOICES]\n"
        "class Helper: pass\n"
        "@dataclass(repr=False)\nclass Train(Base):\n"
        "    '''How it trains.'''\n"
        "    shared: ClassVar[int] = Helper().count\n"
        "    needed: float\n"
        "    moved: str = field(default=CHOICES[0], metadata={'help': f'Below {LONGEST}.', 'choices': list(CHOICES)})\n"
        "    names: list[str] = field(default_factory=lambda: [name.upper() for name in NAMES])\n"
        "    def __post_init__(self): self.first\n"
        "class Odd:\n    field: int = Helper()\n"
    ),
}


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    (tmp_path / "toy_outline").mkdir()
    for name, text in FILES.items():
        (tmp_path / "toy_outline" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("name", ["toy_outline.heavy.Train", "toy_outline.Exported"])
def test_fields_include_those_of_bases_in_the_package(name):
    cls = outline(name)
    assert (cls.__name__, cls.__doc__) == ("Train", "How it trains.")
    assert cls.extends == ("elsewhere.Heavy", "other.thing.Mixin")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    assert list(fields) == ["first", "moved", "text", "needed", "names"]
    assert get_type_hints(cls) == {"first": int, "moved": str, "text": str, "needed": float, "names": list[str]}
    assert (fields["first"].default, fields["text"].default, fields["moved"].default) == (16, "[1]", "a")
    assert fields["needed"].default is dataclasses.MISSING
    assert fields["moved"].metadata == {"help": "Below 100.", "choices": ["a", "b"]}
    assert cls(needed=1.0).names == ["A100", "B100"]
    assert {name for name in sys.modules if name.startswith("toy_outline")} <= {"toy_outline", "toy_outline.light"}


def test_name_that_is_no_class_is_an_attribute_error():
    for name in ("toy_outline.heavy.Trian", "toy_outline.heavy.LONGEST", "toy_outline.base.Heavy", "toy_outline.Train"):
        with pytest.raises(AttributeError, match=name):
            outline(name)


def test_default_that_needs_an_import_is_named():
    with pytest.raises(NameError, match=r"Helper, which a field of toy_outline\.heavy names"):
        outline("toy_outline.heavy.Odd")
