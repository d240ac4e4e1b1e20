"""The picture of the method is the current output of its script, and a valid SVG."""

from xml.etree import ElementTree

from make_picture import HEIGHT, PICTURE, WIDTH, draw


def test_picture_is_current():
    assert PICTURE.read_text(encoding="utf-8") == draw(), "run python docs/make_picture.py"


def test_shapes_are_within_the_picture():
    names = {"rect": ("x", "y", "width", "height"), "text": ("x", "y")}
    shapes = 0
    for element in ElementTree.fromstring(draw()).iter():
        if wanted := names.get(element.tag.rpartition("}")[2]):
            x, y, *size = (float(element.get(name)) for name in wanted)
            width, height = size or (0, 0)
            assert 0 <= x and x + width <= WIDTH and 0 <= y and y + height <= HEIGHT
            shapes += 1
    assert shapes > 100
