import logging
from concurrent.futures import ThreadPoolExecutor

from patcher._log import say_once


def test_once_for_each_key(caplog):
    for key in ("key", "other", "key"):
        say_once(key, f"said {key}")
    assert caplog.messages == ["said key", "said other"]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_another_level(caplog):
    with caplog.at_level(logging.INFO, logger="patcher"):
        say_once("key", "said", logging.INFO)
    assert caplog.record_tuples == [("patcher", logging.INFO, "said")]


def test_a_percent_sign_in_a_message_is_text(caplog):
    say_once("key", "100 %s")
    assert caplog.messages == ["100 %s"]


def test_threads_say_it_once(caplog):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: say_once("key", "said"), range(64)))
    assert caplog.messages == ["said"]
