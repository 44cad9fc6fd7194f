"""The table of attacks: the source of each, and the test that tries it here.

An advisory applies to all software that could make the same mistake, so each row is tried against our server
or client. A test in another folder is named and not repeated. Checked here: each test exists, and each test
of this folder has a source.
"""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parents[2]


class Attack(NamedTuple):
    """One way to attack."""

    name: str
    source: str
    """An advisory, a weakness by its number, a page of OWASP, or a part of the specification."""
    tests: tuple[str, ...]
    """Files and functions: `contract/folder/test_x.py::test_y`."""


WEB = "contract/attacks/test_attack_web.py::test_"
MESSAGES = "contract/attacks/test_attack_messages.py::test_"
CONFIG = "contract/attacks/test_attack_config.py::test_"
SERVER = "contract/attacks/test_hostile_server.py::test_"
WIRE = "contract/attacks/test_attack_wire.py::test_"
STREAMS = "contract/attacks/test_hostile_streams.py::test_"
HTTP = "contract/attacks/test_hostile_http.py::test_"
PAST = "contract/attacks/test_past_vulnerabilities.py::test_"
PROCESS = "contract/attacks/test_hostile_process.py::test_"
CLIENT = "unit/transports/test_http_client_hostile.py::test_"
FRAMING = "contract/attacks/test_attack_framing.py::test_"
LOGS = "contract/attacks/test_attack_logs.py::test_"
SCHEMAS = "contract/attacks/test_attack_schemas.py::test_"
REPETITION = "contract/attacks/test_attack_repetition.py::test_"
SESSIONS = "contract/transports/test_http_sessions.py::test_"

BEST_PRACTICES = "MCP specification, security best practices"

ATTACKS = [
    # ----------------------------------------------------------------- against servers, from a web page
    Attack(
        "DNS rebinding: a page reaches a local server under a name of its own",
        "CVE-2025-66416 (GHSA-9h52-p55h-vw2f, Python SDK), CVE-2025-66414 (GHSA-w48q-cv73-mx4w, TypeScript "
        "SDK), CVE-2026-35568 (Java SDK)",
        (f"{WEB}a_foreign_host_name_is_rejected_everywhere", f"{WEB}a_host_name_cannot_be_smuggled_in"),
    ),
    Attack(
        "a page posts to a local port, also by way of 0.0.0.0",
        "CVE-2025-49596 (MCP Inspector)",
        (
            f"{WEB}a_page_of_another_origin_is_rejected",
            "contract/transports/test_http_statuses.py::test_status",
        ),
    ),
    # ----------------------------------------------------------------- against servers, about sessions
    Attack(
        "session fixation: the client chooses the id",
        "CWE-384; OWASP Periodic Table of Vulnerabilities, Session Fixation",
        (f"{WEB}session_ids_are_chosen_by_the_server_and_cannot_be_guessed",),
    ),
    Attack(
        "session ids that can be guessed",
        "CVE-2025-6515 (oatpp-mcp); OWASP Session Management Cheat Sheet",
        (f"{WEB}session_ids_are_chosen_by_the_server_and_cannot_be_guessed",),
    ),
    Attack(
        "a client that knows the id of a stream takes it over",
        "CVE-2026-33946 (GHSA-qvqr-5cv7-wh35, Ruby SDK)",
        (
            "unit/transports/test_http_sessions_internals.py::test_a_second_reader_is_turned_away",
            f"{SESSIONS}a_session_belongs_to_the_principal_that_opened_it",
            f"{SESSIONS}a_stream_of_another_session_cannot_be_resumed",
            "contract/transports/test_sse_server.py::test_a_session_belongs_to_the_principal_that_opened_it",
        ),
    ),
    Attack(
        "session hijack: prompts and events are put into another's session",
        f"{BEST_PRACTICES}, Session Hijacking",
        (
            f"{MESSAGES}a_client_cannot_act_in_another_session",
            f"{SESSIONS}an_answer_of_another_session_is_ignored",
            "contract/auth/test_client_attacks.py::test_stored_credentials_are_sent_only_to_their_issuer",
        ),
    ),
    Attack(
        "equal ids of several clients send answers to the wrong one",
        "CVE-2026-25536 (GHSA-345p-7cg4-v4c7, TypeScript SDK)",
        (
            f"{WEB}equal_request_ids_of_many_clients_are_not_mixed_up",
            "unit/transports/test_http_streams_modern_internals.py::test_requests_with_one_id_do_not_know_of_each_other",
        ),
    ),
    Attack(
        "the session's secret shows up in logs and errors",
        "CWE-532; OWASP MCP Top 10, MCP01",
        (
            "unit/client/test_session_secret.py::test_the_id_of_a_session_is_neither_logged_nor_reported",
            f"{WEB}a_rejection_is_reported_without_the_rejected_content",
        ),
    ),
    # ----------------------------------------------------------------- against servers, to take them down
    Attack(
        "a malformed request ends the server",
        "GHSA-3qhf-m339-9g5v (Python SDK)",
        (
            f"{MESSAGES}a_bomb_is_rejected_and_other_clients_are_served",
            f"{MESSAGES}a_process_survives_all_bombs_on_one_stream",
        ),
    ),
    Attack(
        "a client that breaks off ends the server",
        "CVE-2025-53365 (GHSA-j975-95f5-7wqh, Python SDK)",
        (f"{WEB}a_disconnect_does_not_affect_other_clients",),
    ),
    Attack(
        "JSON bombs: deep, wide, many digits, members twice",
        "CWE-674, CWE-770; RFC 8259 §9",
        (
            f"{MESSAGES}a_bomb_is_rejected_and_other_clients_are_served",
            "unit/protocol/test_jsonrpc.py::test_64_megabytes_of_digits_are_not_what_is_wanted",
            "unit/protocol/test_jsonrpc.py::test_many_members_are_counted_in_linear_time",
        ),
    ),
    Attack(
        "slow loris: half heads, half bodies",
        "CWE-400; blog.qualys.com, How to Protect Against Slow HTTP Attacks",
        (
            f"{WIRE}many_slow_clients_do_not_delay_others",
            "unit/transports/test_attack_wire_internals.py::test_a_body_that_does_not_come_is_given_up",
            "unit/transports/test_uvicorn_protocol.py::test_an_endless_head_is_rejected",
        ),
    ),
    Attack(
        "slow reading: who asks for much and takes nothing",
        "CWE-400; blog.qualys.com, Are you ready for slow reading?",
        (
            "contract/chaos/test_stalled_processes.py::test_an_http_client_that_does_not_read_has_no_unbounded_buffer_and_does_not_delay_others",
            "unit/transports/test_sse_server_internals.py::test_a_client_that_sends_more_than_it_reads_is_disconnected",
        ),
    ),
    Attack(
        "a template's regular expression explodes",
        "CVE-2026-0621 (TypeScript SDK), CWE-1333",
        (
            f"{MESSAGES}matching_a_nearly_fitting_uri_takes_linear_time",
            "unit/protocol/test_match.py::test_the_work_grows_with_the_length_only",
        ),
    ),
    # ----------------------------------------------------------------- against servers, to get at more
    Attack(
        "traversal in a URI",
        "CVE-2025-53109, CVE-2025-53110 (filesystem server), CVE-2026-32871 (GHSA-vv7q-7jx5-f767, FastMCP)",
        (
            f"{MESSAGES}no_uri_escapes_the_folder_of_a_function",
            "unit/protocol/test_match.py::test_no_traversal_yields_a_value_that_leads_out",
        ),
    ),
    Attack(
        "one message, two readings: names in other cases, members twice",
        "CVE-2026-27896 (GHSA-wvj2-96wp-fq3f, Go SDK)",
        (
            f"{MESSAGES}a_bomb_is_rejected_and_other_clients_are_served",
            f"{SERVER}an_answer_that_is_none_fails_its_call_alone",
        ),
    ),
    Attack(
        "a key stands twice in the parameters: a gateway sees another tool than the one that runs",
        "CWE-436; RFC 8259 §4; CVE-2017-12635 (Apache CouchDB)",
        (
            f"{MESSAGES}a_key_that_stands_there_twice_reaches_no_tool",
            f"{MESSAGES}a_key_that_stands_there_twice_reaches_no_tool_of_a_process",
            f"{MESSAGES}keys_and_quotes_in_values_are_no_duplicates",
        ),
    ),
    Attack(
        "an error of an upstream server writes into `WWW-Authenticate`",
        "CWE-74; RFC 6750 §3; RFC 9728 §5.1",
        (f"{REPETITION}what_is_no_scope_does_not_get_into_a_header",),
    ),
    Attack(
        'id confusion: 1, "1", 1.0, true, null',
        "JSON-RPC 2.0 §4; MCP specification, basic, requests",
        (
            f"{MESSAGES}an_invalid_id_reaches_no_tool",
            f"{MESSAGES}a_number_and_its_digits_are_different_ids",
            "unit/protocol/test_connection.py::test_ids_are_distinguished_by_type",
        ),
    ),
    Attack(
        "spoofed notices: cancelled, progress, complete",
        f"{BEST_PRACTICES}, Session Hijacking; MCP specification, cancellation",
        (
            f"{MESSAGES}a_client_cannot_act_in_another_session",
            f"{SERVER}an_unsolicited_response_changes_nothing",
            "unit/client/test_url_elicitation_end.py::test_a_completion_is_reported_once_and_only_while_the_elicitation_is_in_progress",
        ),
    ),
    Attack(
        "request smuggling: length and chunks, folded lines, fields twice",
        "CWE-444; RFC 9112 §6.1, §11.2",
        (
            f"{WIRE}no_second_request_is_hidden_in_a_first",
            f"{FRAMING}a_trailer_is_not_a_header",
            f"{FRAMING}an_offer_to_upgrade_in_two_parts_closes_the_connection",
            f"{FRAMING}an_offer_to_upgrade_behind_another_request_closes_the_connection",
        ),
    ),
    Attack(
        "endless trailers and chunk extensions",
        "CWE-770; CVE-2023-39326 (Go net/http); RFC 9112 §7.1",
        (
            f"{FRAMING}bytes_outside_the_body_have_a_limit",
            f"{FRAMING}a_body_in_small_chunks_has_the_limit_of_a_body",
        ),
    ),
    Attack(
        "a call runs twice: a lost session, an error of another server, a state sent again",
        "CWE-837; CWE-294; MCP specification, tools, security considerations",
        (
            f"{REPETITION}a_session_that_ends_during_a_call_never_repeats_the_call",
            f"{REPETITION}a_relayed_error_about_the_revision_does_not_repeat_the_call",
            f"{REPETITION}a_session_that_is_deleted_during_a_call_never_repeats_the_call",
            f"{REPETITION}a_hint_counts_until_the_list_changes",
            f"{REPETITION}an_error_of_an_upstream_server_is_an_error_of_the_tool",
            f"{REPETITION}an_error_of_an_upstream_server_is_not_ours_behind_a_tool_either",
            f"{REPETITION}an_error_of_the_client_that_was_asked_is_an_error_of_the_tool",
            f"{REPETITION}what_a_gateway_forwards_is_neither_a_status_nor_a_challenge",
            f"{REPETITION}a_state_with_steps_is_used_once",
            f"{REPETITION}equal_calls_have_states_of_their_own",
            f"{REPETITION}steps_behind_the_last_question_run_once",
            f"{REPETITION}a_state_of_a_destructive_tool_is_used_once",
            f"{REPETITION}a_step_that_cannot_be_stored_does_not_run",
        ),
    ),
    Attack(
        "headers that contradict the body, or hold a line break",
        "CWE-93; MCP specification 2026-07-28, Streamable HTTP, header validation",
        (
            f"{WIRE}a_header_that_says_something_else_reaches_no_tool",
            f"{CONFIG}no_name_becomes_a_header_of_its_own",
        ),
    ),
    Attack(
        "event injection: text with line breaks in a log, in progress, in a result",
        "CWE-93; WHATWG HTML §9.2, server-sent events",
        (
            f"{WEB}text_cannot_become_an_event",
            "unit/protocol/test_sse.py::test_text_cannot_become_a_field_or_an_event",
            "unit/protocol/test_framing.py::test_a_framed_message_is_one_line",
        ),
    ),
    Attack(
        "a state that a client brings back is forged, or another's",
        f"{BEST_PRACTICES}, state handles (2026-07-28)",
        (
            "contract/server/test_request_state.py::test_a_state_is_good_for_one_caller_one_server_and_one_request",
            "contract/server/test_stateless_client_requests.py::test_a_state_that_is_not_of_this_call_is_refused_without_a_reason",
        ),
    ),
    # ----------------------------------------------------------------- against clients, to run something
    Attack(
        "a command in the URL of the authorization server",
        "CVE-2025-6514 (mcp-remote)",
        (
            "contract/auth/test_client_attacks.py::test_a_page_that_must_not_be_opened",
            "unit/auth/test_oauth_parts.py::test_the_browser_is_given_pages_only",
        ),
    ),
    Attack(
        "a command in a configuration, or in a name",
        "CVE-2025-64340 (FastMCP), CWE-78",
        (
            f"{CONFIG}a_configuration_is_run_by_no_shell",
            f"{CONFIG}a_command_line_is_split_and_nothing_else",
            f"{CONFIG}a_command_is_the_name_of_a_program",
        ),
    ),
    Attack(
        "secrets of our environment end up with a server",
        f"{BEST_PRACTICES}, Local MCP Server Compromise",
        (
            f"{CONFIG}our_environment_is_not_passed_on",
            "unit/transports/test_stdio_client.py::test_a_server_gets_only_harmless_and_given_variables",
        ),
    ),
    Attack(
        "an address or a header in a configuration becomes two",
        "CWE-93",
        (f"{CONFIG}an_address_that_could_become_two_is_refused",),
    ),
    Attack(
        "terminal escapes in what people are shown",
        "CWE-150; mcpsafe.io, MCP-083",
        (
            "contract/client/test_prompting.py::test_text_of_a_server_is_escaped_for_the_terminal",
            "contract/client/test_prompting.py::test_a_long_line_cannot_look_like_one_of_ours",
            f"{HTTP}a_response_that_is_none_fails_its_call_alone",
        ),
    ),
    Attack(
        "a URL to visit that is no page: javascript:, file:",
        "MCP specification, elicitation, safe URL handling",
        (
            "contract/client/test_prompting.py::test_a_url_that_is_not_a_web_page_is_not_opened",
            "contract/server/test_url_elicitation.py::test_an_invalid_url_is_rejected_before_it_is_sent",
            "unit/protocol/test_icons.py::test_only_two_schemes_are_safe",
        ),
    ),
    # ----------------------------------------------------------------- against clients, to go elsewhere
    Attack(
        "a redirect, or a place to post to, takes messages and headers elsewhere",
        f"CWE-601, CWE-918; {BEST_PRACTICES}, Server-Side Request Forgery",
        (
            f"{HTTP}a_response_that_is_none_fails_its_call_alone",
            f"{STREAMS}messages_are_posted_nowhere_else",
            f"{STREAMS}a_second_place_to_post_to_is_not_used",
            "unit/auth/test_client_attacks_internals.py::test_a_public_server_does_not_send_us_into_private_networks",
        ),
    ),
    Attack(
        "a session is renamed or named so that a header breaks; event ids likewise",
        "CWE-384, CWE-93",
        (
            f"{STREAMS}a_session_is_named_once_for_all",
            f"{STREAMS}a_session_with_a_name_that_no_header_can_carry_is_not_opened",
            "unit/transports/test_hostile_streams_internals.py::test_an_event_is_not_asked_for_by_a_name_that_no_header_can_carry",
        ),
    ),
    # ----------------------------------------------------------------- against clients, to take them down
    Attack(
        "compressed bombs",
        "CVE-2025-66471 (urllib3), CWE-409",
        (f"{HTTP}a_response_that_is_none_fails_its_call_alone",),
    ),
    Attack(
        "bodies, lines, events, headers without end",
        "CWE-770",
        (
            f"{HTTP}a_response_without_end_is_not_read_to_its_end",
            f"{HTTP}an_endless_response_ends_with_the_timeout",
            f"{PROCESS}an_endless_line_does_not_fill_the_memory",
            f"{PROCESS}a_line_over_the_limit_fails_its_call_and_the_next_is_read",
            f"{PROCESS}a_line_over_the_limit_fails_its_call_before_it_ends",
            f"{SERVER}the_limit_is_small_enough_to_be_met",
        ),
    ),
    Attack(
        "invalid answers, or those of another user",
        "CWE-20; JSON-RPC 2.0 §5",
        (
            f"{SERVER}an_answer_that_is_none_fails_its_call_alone",
            f"{SERVER}a_result_that_is_none_fails_its_call_alone",
            f"{SERVER}a_repeated_response_is_received_once",
        ),
    ),
    Attack(
        "floods of notices, requests and rubbish",
        "CWE-770; OWASP MCP Top 10",
        (f"{SERVER}a_flood_ends_and_the_answer_behind_it_is_received",),
    ),
    Attack(
        "`retry: 0`, or a wait without end",
        "WHATWG HTML §9.2, reconnection time",
        (
            f"{STREAMS}a_server_that_ends_each_stream_at_once_is_not_asked_all_the_time",
            f"{STREAMS}an_extreme_sse_retry_delays_no_other_request",
            f"{CLIENT}a_server_that_wants_no_pause_and_says_nothing_is_not_asked_all_the_time",
        ),
    ),
    Attack(
        "servers that never answer, or never let go",
        "CWE-400",
        (
            f"{HTTP}a_server_that_takes_the_call_and_never_speaks",
            "unit/transports/test_hostile_streams_internals.py::test_a_session_whose_end_is_never_confirmed_is_left",
            f"{PROCESS}a_process_that_never_sends_anything_times_out",
            f"{PROCESS}a_process_that_sends_half_a_line_and_stops",
            f"{PROCESS}a_process_that_closes_stdout_and_lives_on",
            f"{PROCESS}a_process_that_does_not_read_its_stdin",
            f"{PROCESS}a_process_that_ignores_the_end_of_stdin_is_killed",
        ),
    ),
    Attack(
        "servers that die, or mumble",
        "MCP specification, stdio",
        (
            f"{PROCESS}a_process_that_ends_in_a_call_is_reported_with_its_exit_code",
            f"{PROCESS}a_process_that_ends_before_its_first_message_cannot_be_connected_to",
            f"{PROCESS}output_before_the_first_message_is_skipped",
        ),
    ),
    Attack(
        "a schema with a pattern that explodes, or a `$ref` to elsewhere",
        "CWE-1333, CWE-918; MCP specification 2026-07-28, JSON Schema",
        (
            f"{PROCESS}a_schema_that_explodes_or_has_remote_references",
            "unit/client/test_outputs.py::test_a_schema_is_read_in_its_dialect",
        ),
    ),
    Attack(
        "a schema of 2 KB whose references or alternatives double at each level",
        "CWE-776; MCP specification 2026-07-28, JSON Schema",
        (
            f"{SCHEMAS}a_schema_cannot_hang_a_client_or_a_server",
            f"{SCHEMAS}a_form_cannot_hang_a_client",
            f"{SCHEMAS}a_recursive_schema_is_used",
            f"{SCHEMAS}a_mismatch_with_many_alternatives_is_told_in_few_words",
            f"{SCHEMAS}a_schema_or_a_pattern_that_is_too_large_is_refused",
        ),
    ),
    Attack(
        "a peer floods the log: bad items, long names",
        "CWE-779; OWASP Logging Cheat Sheet",
        (
            f"{LOGS}bad_items_of_a_list_do_not_flood_the_log",
            f"{LOGS}notifications_with_long_names_do_not_flood_the_log",
            f"{LOGS}requests_that_a_client_refuses_do_not_flood_the_log",
            f"{LOGS}errors_with_long_messages_do_not_flood_the_log",
        ),
    ),
    # ----------------------------------------------------------------- what once got through here
    Attack(
        "a peer that asks and never reads fills the memory with answers",
        "CWE-400, CWE-770",
        (
            f"{PAST}a_peer_that_pings_and_does_not_read_does_not_fill_the_memory",
            "contract/attacks/test_attack_unread.py::test_responses_to_running_calls_count_too",
        ),
    ),
    Attack(
        "escapes in what a server says of itself take over a terminal",
        "CWE-150",
        (
            f"{PAST}the_last_stderr_of_a_process_cannot_move_the_cursor",
            f"{PAST}the_name_of_a_server_cannot_move_the_cursor_or_fill_the_screen",
        ),
    ),
    Attack(
        "a stream that ends at once is asked for without a pause",
        "CWE-770; WHATWG HTML §9.2, server-sent events",
        (f"{PAST}a_server_that_ends_each_stream_after_a_change_is_polled_slowly",),
    ),
    Attack(
        "a caller waits without end for an invalid answer",
        "JSON-RPC 2.0 §5",
        (f"{PAST}an_invalid_response_is_reported_on_a_stream_too",),
    ),
    Attack(
        "numbers that no value can hold fill the log",
        "CWE-779; RFC 8259 §6",
        (f"{PAST}a_number_out_of_range_is_an_invalid_argument_and_not_a_crash",),
    ),
    Attack(
        "a drive of Windows leads out of a folder",
        "CWE-36",
        (f"{PAST}a_drive_leads_out_of_a_folder",),
    ),
]


@cache
def functions(path: Path) -> frozenset[str]:
    return frozenset(
        node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
    )


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_every_attack_has_a_source_and_tests_that_exist(attack):
    assert attack.source
    assert attack.tests
    for test in attack.tests:
        file, _, name = test.partition("::")
        assert name in functions(TESTS / file), test


def test_no_attack_of_this_folder_lacks_a_source():
    named = {test for attack in ATTACKS for test in attack.tests}
    here = {
        f"contract/attacks/{path.name}::{name}"
        for path in Path(__file__).parent.glob("test_*.py")
        if path != Path(__file__)
        for name in functions(path)
        if name.startswith("test_")
    }
    assert here - named == set()


def test_no_attack_is_listed_twice():
    names = [attack.name for attack in ATTACKS]
    assert len(set(names)) == len(names)
