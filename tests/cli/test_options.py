import yaml

from mimonets.cli._options import data_override


def test_a_path_with_an_emoji_arrives_whole():
    (setting,) = data_override('data 😀 "quoted"')
    name, _, value = setting.partition("=")
    assert name == "data.dir"
    assert yaml.safe_load(value) == 'data 😀 "quoted"'
