"""What runs of one user know of each other: all in a thread, and nothing across threads."""

from tests.acceptance.terminal import Terminal


# features: 000-03
def test_a_run_is_shown_what_its_thread_said_before_and_no_other_thread(terminal: Terminal) -> None:
    terminal.open()
    first = terminal.run("witness", "My dog is called Rex.", "--thread", "dogs", "--user", "alice")

    second = terminal.run("witness", "Which dog?", "--thread", "dogs", "--user", "alice")
    elsewhere = terminal.run("witness", "Which dog?", "--thread", "cats", "--user", "alice")

    assert "My dog is called Rex." in second["result"]
    assert first["result"][:20] in second["result"].replace("\\", ""), "the answer as well"
    assert "Rex" not in elsewhere["result"]
    assert "Which dog?" in elsewhere["result"]
    terminal.assert_sound()


# features: 000-06
def test_a_run_changes_nothing_of_another_thread_of_the_same_user(terminal: Terminal) -> None:
    terminal.open()
    other = terminal.run("witness", "one", "--thread", "a", "--user", "alice")["run_id"]
    before = terminal.rows_of(other)

    terminal.run("witness", "two", "--thread", "b", "--user", "alice")

    assert terminal.rows_of(other) == before


# features: 000-06, 000-07
def test_a_thread_cannot_be_used_under_another_users_name(terminal: Terminal) -> None:
    terminal.open(workers=1)
    mine = terminal.run("witness", "one", "--thread", "a", "--user", "alice")["run_id"]
    before = terminal.rows_of(mine)

    refused = terminal.try_celeriac(
        "run", "witness", "--input", '"two"', "--thread", "a", "--user", "bob", "--run-id", "bobs"
    )

    assert refused.exit_code == 1
    assert "belongs to another user" in refused.stderr
    assert terminal.rows_of("bobs") == []
    assert terminal.rows_of(mine) == before
