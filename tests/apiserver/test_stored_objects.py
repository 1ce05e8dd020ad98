import msgspec
from hypothesis import given
from hypothesis import strategies as st

from plugwright.apiserver.stored_objects import Object, StoredObject, StoredObjects

VALUES: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


@given(OBJECTS, OBJECTS)
def test_an_object_is_the_same_whatever_it_was_packed_like(content: Object, other: Object) -> None:
    stored = StoredObject(content, "1")
    stored.pack(msgspec.json.encode(other))
    assert stored.content == content
    assert msgspec.json.decode(stored.json) == content


def test_objects_are_a_sequence_and_json() -> None:
    contents = [{"name": name} for name in "abc"]
    packed = StoredObject(contents[0], "1")
    packed.pack(b"{}")
    objects = StoredObjects([packed, *(StoredObject(content, "2") for content in contents[1:])])
    assert (list(objects), len(objects), objects[-1]) == (contents, 3, contents[2])
    assert list(objects[:2]) == contents[:2]
    assert msgspec.json.decode(msgspec.json.encode(objects.raw())) == contents
