package main

import "github.com/alecthomas/kong"

// longHelp replaces the names of help texts by the texts. It is used instead of
// kong's own variables, because kong copies all of them for each flag, which takes longer than all else at a
// start.
func longHelp(k *kong.Kong) error {
	return kong.Visit(k.Model.Node, func(node kong.Visitable, next kong.Next) error {
		switch node := node.(type) {
		case *kong.Flag:
			if text, ok := helpTexts[node.Help]; ok {
				node.Help = text
			}
		case *kong.Node:
			if text, ok := helpTexts[node.Help]; ok {
				node.Help = text
			}
			for _, argument := range node.Positional {
				if text, ok := helpTexts[argument.Help]; ok {
					argument.Help = text
				}
			}
		}
		return next(nil)
	})
}

// helpTexts are the help texts of flags that are too long for the flag's own line, which has
// their names.
var helpTexts = map[string]string{
	"help_access_auth":    "YAML file with API keys and what they may do; see seqledger auth.",
	"help_access_tlscert": "Certificate of the server, in PEM, with those between it and a root.",
	"help_access_tlsclient_ca": "Demand a certificate of these authorities from each client, besides its " +
		"credential.",
	"help_access_corsorigin": "Let pages of this origin call from a browser, such as https://app.example.com; " +
		"repeatable.",
	"help_access_insecure": "Let other machines connect without TLS, or without --auth: who may do that is then " +
		"yours to see to.",
	"help_new_key_id": "Name of the key; what is written with it bears the actor client:ID.",
	"help_new_key_scope": "Scopes: ORG, ORG/VAULT, with * for any run of characters, or * alone for all; " +
		"repeatable.",
	"help_new_key_client_id": "Client ids under which it may write, with * for any run of characters; repeatable.",
	"help_new_key_role":      "reader, writer, delegate or admin.",
	"help_new_key_append":    "Add it to this auth file, which is made if it is not there.",
	"help_auth_check_token":  "Session token whose rights to explain; - reads it from standard input.",
	"help_bench_streams":     "Write to so many streams at once, one write outstanding on each.",
	"help_bench_rate": "Begin so many writes a second, whether earlier ones are answered or not; 0 for as fast " +
		"as answers come.",
	"help_conformance_client": "Command that starts the client, for a shell. Default: the client of this program.",
	"help_connection_server": "Address of the server, host:port or https://host:port; several of one ledger with " +
		"commas between them.",
	"help_connection_token": "API key or session token. Other users of the machine can see it on a command line; " +
		"better use the environment or a file.",
	"help_connection_cleartext": "Send the token in clear to a host that is not this machine, where the network " +
		"can read it.",
	"help_connection_tlsca":   "Certificates to trust in place of the system's, for https.",
	"help_connection_tlscert": "Certificate to show, for a server that asks for one.",
	"help_demo_seed": "Decides which request meets which fault, who is killed when, and the amounts; 0 takes a " +
		"new one.",
	"help_import_append_lines": "Append each line as it stands, of any text file, rather than read operations " +
		"from it.",
	"help_import_state_file": "Where the import remembers what it has begun. Default: FILE.seqledger-import.",
	"help_import_take_session": "Go on from this session of the stream, although the state file has another, or " +
		"none: only if you know what was written under it, and nothing writes under it now.",
	"help_store_url": "What keeps the records: ledger, postgres://…, redis://…, s3://BUCKET/PREFIX, or memory: " +
		"(forgotten at the end). A password is better in the variable.",
	"help_store_data":   "Directory of the ledger that this process opens itself; nothing else may have it open.",
	"help_store_ledger": "Use a running ledger: host:port or URL, several with commas. Default: one of its own.",
	"help_store_journal": "Directory for results that the ledger did not take; they are stored later. " +
		"Default: journal in --data.",
	"help_store_listen": "Serve the ledger of this process on this address too, loopback only, for " +
		"seqledger key; off when empty.",
	"help_gateway_debug_listen": "Serve profiles (/debug/pprof/) and /metrics on this address, in clear, loopback " +
		"only; off when empty.",
	"help_gateway_max_principal": "Requests with a key that one principal may have under way; further ones are " +
		"refused with 429. 0 means half of --max-requests.",
	"help_gateway_max_peer": "Requests that one address, or one /64 of IPv6, may have under way, but for trusted " +
		"proxies and this machine; further ones are refused with 429. 0 means half of --max-requests.",
	"help_store_max_keys": "Keys that the ledger of this process keeps for one principal; further ones are " +
		"refused.",
	"help_store_cleanup": "How often --store memory: and postgres:// delete records that have expired; the others do " +
		"so by themselves.",
	"help_guard_lease": "How long the ledger waits for a guard that was killed, where the file says nothing.",
	"help_guard_wait": "How long a repeat waits for the first call, where the file says nothing; 0 does " +
		"not wait.",
	"help_guard_key_window": "How long a call with an earlier one's key is a repeat, where the file says nothing.",
	"help_serve_key_lease": "Lease of a Reserve or Heartbeat that says nothing of it. All nodes of a cluster should " +
		"have the same; so for the next two.",
	"help_serve_key_ttl":      "How long a result of a key, or a keyed write, is known that says nothing of it.",
	"help_serve_key_rejected": "How long the refusal of a key is known that says nothing of it.",
	"help_gateway_proxies": "Networks of the proxies before this gateway, whose --principal-header and X-Forwarded-* " +
		"headers are believed.",
	"help_gateway_fingerprint": "What of a body is compared: raw (its bytes), jcs (its JSON value), pointers (some " +
		"values of it) or none.",
	"help_gateway_effect_free": "Which of 401, 403, 407, 408, 409, 423, 425 and 429 the service sends before " +
		"anything has happened: they free the key. After the others the outcome is unknown.",
	"help_gateway_stored": "What of a response is kept: response, or outcome, its status and Location alone, where " +
		"bodies must not be stored. Repeats then get 410.",
	"help_gateway_fresh_fields": "JSON pointers of fields that get a new UUID in a replay, such as /requestId.",
	"help_gateway_replay_check": "Ask the service before each replay: a request of this method and path with the " +
		"caller's headers; 2xx allows the replay. For example 'GET /may-read'.",
	"help_gateway_cors": "Let pages of these origins, such as https://shop.example, read the responses, replays and " +
		"refusals among them; the service's own headers for that are dropped.",
	"help_gateway_principal": "Header that says who sends a request, from --trusted-proxies alone. Default: the " +
		"hash of Authorization.",
	"help_gateway_identity": "What tells the senders of requests apart: authorization, host, any-tenant (the common " +
		"headers for tenants), authorization-id, and names of headers. Default: authorization,host.",
	"help_gateway_headers": "Headers that are compared with those of a repeat; default: any-tenant,any-version, the " +
		"common headers for tenants and versions. Preconditions are always compared.",
	"help_gateway_visitor": "Header with a secret of a client that has no credential yet, and sends it also when it " +
		"has one.",
	"help_gateway_claim": "Claim of the session token (JWT) that says who sends a request, for example sub; the " +
		"section jwt of the file says whose tokens.",
	"help_gateway_lease": "How long a request is under way after its gateway was killed; then --on-lease-expired " +
		"says what becomes of its key.",
	"help_gateway_lease_expired": "What a gateway that was killed leaves behind: indeterminate, or takeover for work " +
		"that may run again.",
	"help_gateway_errors": "What a response of 500 or more leaves behind: indeterminate, release (it had no " +
		"effects) or store; for one status, as 503=release for a load balancer's own.",
	"help_gateway_stored_headers": "Headers of a response that a replay has, too, besides the usual ones.",
	"help_gateway_idle": "How long an unused connection to the service is kept, unless the service announces a " +
		"shorter time (Keep-Alive); 0 keeps none. It must be shorter than the time after which the service closes.",
	"help_store_auth": "Auth file for --ledger-listen, as serve --auth has.",
	"help_store_token_file": "File with the key to --ledger; to act for other principals it needs the role " +
		"delegate.",
	"help_gateway_timeout": "How long the service may take to answer; 0 means no limit.",
	"help_gateway_open": "Let requests through without a key when the ledger does not answer: they may " +
		"run twice.",
	"help_gateway_wait":            "How long a repeat waits for the first request; at most 60s, 0 does not wait.",
	"help_gateway_replay_status":   "Status of a replay: original, or 200 for every stored success.",
	"help_gateway_mismatch_status": "Status for a key that was used for another request: 422 or 409.",
	"help_gateway_shared": "One principal for all callers, anonymous ones too: who knows a key gets its " +
		"response.",
	"help_guard_upstream":       "The endpoint of a server over streamable HTTP, in place of a command.",
	"help_guard_upstream_token": "File with the bearer token for --upstream.",
	"help_guard_max_calls":      "Guarded calls under way at once; further ones are refused, and nothing is done.",
	"help_key_principal": "Party on whose behalf the request was made. Default: the caller itself; for others the " +
		"role admin is needed.",
	"help_key_state": "Only those in this state: pending, committed, rejected, indeterminate or written " +
		"(keyed writes).",
	"help_list_entities": "List entities in the order of their keys. This is what list does without a word.",
	"help_all_demo":      "Run a server and clients, break everything between them, and count what is paid twice.",
	"help_guard_principal": "Party on whose behalf the agent calls. Default: the holder of the ledger's key; " +
		"for others it needs the role delegate.",
	"help_outbox_dsn": "The database, such as postgres://USER@HOST/DB, PgBouncer in any mode. A password is better " +
		"in the variable.",
	"help_outbox_table": "The table of rows, or SCHEMA.TABLE.",
	"help_outbox_prefix": "What stands before a stream's name in its client id; no other program may write under " +
		"these.",
	"help_outbox_as":    "committed: the ledger has it; new: it does not, and the row is written as a new write.",
	"help_key_store":    "What keeps the records: ledger, for that of --server, or as for --store of gateway.",
	"help_key_as":       "What the work turned out to be: committed or rejected.",
	"help_key_response": "What repeats of the request are answered with.",
	"help_key_ttl":      "How long the record is known; unset keeps what was asked for when the key was reserved.",
	"help_recover_accept_lost_writes": "Recover, though writes that only the lost nodes had are gone then, also " +
		"acknowledged ones.",
	"help_restore_from_directory": "Restore this data directory, or copy of one, in place of a backup; no server " +
		"may have it open.",
	"help_backup_since": "Leave out the blocks that this backup has, or those that it was made since.",
	"help_restore_files": "Backup to restore, or a full one and those that were made since, in order; - reads one " +
		"from standard input.",
	"help_stale":          "Take what the server has, without asking the other nodes; it may be behind.",
	"help_verify_compare": "Check this data directory, too, and compare the two.",
	"help_verify_backup": "Check this backup instead, and with those before it if it is incremental; - reads one " +
		"from standard input.",
	"help_restore_data": "Data directory to make; it must be absent or empty.",
	"help_restore_ledger_time": "Ledger time to go on with, now or such as 2027-01-31T00:00:00Z; it may be " +
		"earlier than it was. Default: as it was.",
	"help_scope_scope": "Organization, or organization/vault. One slash at most: with more, use --organization " +
		"and --vault.",
	"help_stream_client_id": "Who numbers the writes: 1 to 256 bytes of printable ASCII.",
	"help_cluster_force": "Make the change even if it leaves no majority of voters that are alive and caught up. The " +
		"cluster then takes no writes, and no change that would undo it, until they are.",
	"help_cluster_transfer_id": "Number of the voter that takes over; without it the one that has most of the log.",
	"help_peer_listen": "Address on which other nodes of a cluster reach this one; port 0 takes a free one. Without " +
		"it the node stays alone.",
	"help_peer_advertise": "Address under which the other nodes reach this one, if it is not that of --peer-listen.",
	"help_peer_client": "Address under which clients reach this node, if it is not that of --listen. The other nodes " +
		"tell it to clients.",
	"help_peer_join": "Join the cluster of the node that has this --peer-listen; repeatable. Once the data directory " +
		"holds a ledger, that must be the ledger of these nodes.",
	"help_peer_cert":     "Certificate (PEM) that this node shows to the others, for both directions.",
	"help_peer_ca":       "Certificates (PEM) of the authority that signs those of the nodes, and nothing else.",
	"help_peer_insecure": "Talk to other nodes without TLS on addresses that are not loopback.",
	"help_peer_token": "Secret of the cluster, of at least 16 characters, which a node needs to join. Each node " +
		"keeps it in JOIN-TOKEN in its data directory; the first one makes it unless it is given.",
	"help_peer_token_file": "File with the secret, such as JOIN-TOKEN of another node. A node that joins waits up to " +
		"20 seconds for it.",
	"help_serve_listen": "Address to listen on; port 0 takes a free one. Others than loopback need --auth and " +
		"TLS.",
	"help_serve_data": "Data directory; an absent or empty one becomes a new ledger.",
	"help_serve_debug_listen": "Serve profiles (/debug/pprof/), /metrics, /healthz and /readyz on this address " +
		"too, in clear, loopback only; off when empty.",
	"help_serve_scrub_bytes": "How many bytes of the state file to read a second, in the background, to compare its " +
		"pages with their checksums; at most once an hour all of them. -1 reads none.",
	"help_serve_checkpoint_bytes": "How many bytes of changes gather in memory before they are written to the " +
		"state file; 0 finds it, between 32 and 128 MiB. More writes less to the disk and takes some four times as " +
		"much memory.",
	"help_serve_backup_rate": "How fast a backup may read, in bytes per second; -1 for as fast as it can.",
	"help_serve_disk_reserve": "Refuse writes while less than this is free on the disk of --data, in bytes, and " +
		"no other node can lead; reads go on. 0 never refuses, until the disk is full and the server stops; -1 is " +
		"1 GiB, or a twentieth of a smaller disk.",
	"help_serve_accept_clock": "Believe the system's clock though it is more than 30 days ahead of the last " +
		"command, and further than this ledger ever paused: whatever has a time to live may expire.",
	"help_serve_eviction_interval": "New ledger: look for expired streams and entities after so many commands.",
	"help_serve_archive": "Copy sealed block files to this directory, and let retention remove none that " +
		"is not there. Once a ledger has an archive, a start without this flag removes nothing; none gives the " +
		"archive up.",
	"help_serve_retain_blocks": "New ledger: drop transactions that are older, with their blocks and receipts; 0 " +
		"keeps them for ever.",
	"help_serve_retain_bytes": "New ledger: drop the oldest transactions while the newer ones have as many bytes of " +
		"operations; 0 sets no bound.",
	"help_config_update": "Change several settings by flags. This is what config does without a word.",
	"help_update_retain_blocks": "Drop transactions that are older, with their blocks and receipts; 0 keeps them " +
		"for ever.",
	"help_update_retain_bytes": "Drop the oldest transactions while the newer ones have as many bytes of " +
		"operations; 0 sets no bound.",
	"help_serve_client_ttl":              "New ledger: evict a stream that has been idle for longer.",
	"help_session_open_expected_session": "Only if this is still the stream's session; 0 takes whatever there is.",
	"help_session_open_attempt_id": "Name of the attempt, 32 hex digits: a repeat hands out the same session. " +
		"Default: a new one.",
	"help_update_eviction_interval": "Look for expired streams and entities after so many commands.",
	"help_update_client_ttl":        "Evict a stream that has been idle for longer.",
	"help_write_set":                "Set the entity KEY to the text VALUE.",
	"help_write_set_file":           "Set the entity KEY to the bytes of a file.",
	"help_relate":                   "Create a relationship.",
	"help_unrelate":                 "Delete a relationship.",
	"help_write_if_value":           "Only if KEY has the value VALUE.",
	"help_write_expires_at":         "Let KEY, which is set, expire.",
	"help_write_file": "Commit each line of this file as a write, at most 1,000 in one call; - for standard " +
		"input.",
	"help_write_operations": "Read the operations from a JSON file, - for standard input, " +
		"in place of the flags.",
	"help_write_key":     "Idempotency key, a UUID. Default: a new one, or none with --sequence.",
	"help_write_session": "Session that numbers the write; 0 for a stream without sessions.",
	"help_write_include_proof": "Add the block header and a Merkle proof to the receipt, and check that they " +
		"prove what was sent.",
}
