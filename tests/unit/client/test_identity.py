"""Client ids."""

import ipaddress
import os

from penstock.client.identity import client_id, local_ip, process_name


def test_a_client_id_is_ip_name_and_unit():
    assert client_id("10.0.0.1", "X") == "10.0.0.1@X"
    assert client_id("10.0.0.1", "X", "u") == "10.0.0.1@X@u"


def test_a_process_has_one_name_that_begins_with_its_pid():
    assert process_name() == process_name()
    assert process_name().startswith(f"{os.getpid()}#")


def test_the_child_of_a_fork_has_another_name():
    mine = process_name()
    child = os.fork()
    if child == 0:
        os._exit(0 if process_name().partition("#")[0] == str(os.getpid()) != mine else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_ip_is_one():
    ipaddress.ip_address(local_ip())
