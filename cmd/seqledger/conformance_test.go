package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/cmd/seqledger/conformance"
	"github.com/seqledger/seqledger/internal/testkit/check"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestConformance runs the Go client against every case. The table is in the order of the cases, although they run in
// parallel.
func TestConformance(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it runs some hundred processes: make test-long")
	}
	got := seqledger(t, "conformance", "--parallel", "4").expect(t, exitDone)
	rest := got.stdout
	for _, c := range conformance.Cases() {
		_, after, found := strings.Cut(rest, "ok    "+c.Name+" ")
		if !found {
			t.Fatalf("no result of %s in its place in\n%s", c.Name, got.stdout)
		}
		rest = after
	}
}

// TestConformanceThatIsCanceled checks that parallel cases all end, and that waiting cases never start, when the run is
// canceled or one of the cases cannot start.
func TestConformanceThatIsCanceled(t *testing.T) {
	t.Parallel()
	options := conformance.Options{
		Program: binary, Command: []string{"sleep", "600"}, Parallel: 3, // it never reports opened
		Only: regexp.MustCompile("^(numbering|lost|repeats|late)"), Seed: 1,
	}
	gone := errors.New("no more time")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, gone)
	defer cancel()
	check.Is(t, check.Err(conformance.Run(ctx, options)), gone, "Run after it was canceled")
	options.Program = "/nonexistent"
	if _, err := conformance.Run(t.Context(), options); err == nil || !strings.HasPrefix(err.Error(), "case num") {
		t.Errorf("Run without a server: %v", err)
	}
}

// TestConformanceOfANaiveClient checks that a client that retries under a new number, has no journal and does not know
// sessions fails the cases about these requirements.
func TestConformanceOfANaiveClient(t *testing.T) {
	t.Parallel()
	for mode, short := range map[string]map[string]string{
		"naive": {
			"lost-requests": "and was sent with", "lost-answers": "", "refusal-behind-a-commit": "",
			"two-programs": "", "takeover": "", "eviction": "",
			"idle": "the stream was evicted after 6s", "another-ledger": "", "crash-after": "",
		},
		"greedy":  {"window": "its receipt is gone"},
		"keyless": {"refusal": "which is no UUID"},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			names := slices.Sorted(maps.Keys(short))
			if mode != "keyless" { // keyless passes no case
				names = append(names, "numbering")
			}
			got := seqledger(t, "conformance", "--client", "env "+naiveVariable+"="+mode+" '"+os.Args[0]+"'",
				"--timeout", "60s", "--parallel", "4", "--only", "^("+strings.Join(names, "|")+")$").
				expect(t, exitFailed, fmt.Sprintf("falls short of %d of ", len(short)))
			if mode != "keyless" && !regexp.MustCompile(`(?m)^ok +numbering `).MatchString(got.stdout) {
				t.Errorf("without faults it has to pass:\n%s", got.stdout)
			}
			for name, why := range short {
				if !regexp.MustCompile(`(?m)^FAIL +` + name + ` .*\n.*` + why).MatchString(got.stdout) {
					t.Errorf("%s has to fail with %q:\n%s", name, why, got.stdout)
				}
			}
		})
	}
}

// TestConformanceOfNoClient checks that a client that ends is reported, and that the cases are listed without one.
func TestConformanceOfNoClient(t *testing.T) {
	t.Parallel()
	got := seqledger(t, "conformance", "--client", "sh -c 'exit 3'", "--only", "^numbering$").expect(t, exitFailed)
	check.Contains(t, got.stdout, "ended by itself", "a client that ends")
	got = seqledger(t, "conformance", "--client", "./no-such-client --verbose").expect(t, exitFailed, "no-such-client")
	check.Equal(t, got.stdout, "", "the cases of a client that is not there")
	list := seqledger(t, "conformance", "--list").expect(t, exitDone)
	if !slices.ContainsFunc(strings.Split(list.stdout, "\n"), func(line string) bool {
		return strings.HasPrefix(line, "takeover ")
	}) {
		t.Errorf("%s", list.stdout)
	}
}

// naiveVariable turns the test binary into a client that fails: naive retries under a new number and a new key, keyless
// sends no keys, and greedy sends more writes at once than the window has receipts.
const naiveVariable = "CONFORMANCE_NAIVE_CLIENT"

// naiveClient behaves like a POST with retries: it sends an unanswered write again as a new write.
func naiveClient(mode string, in io.Reader, out io.Writer) int {
	ctx, say := context.Background(), json.NewEncoder(out)
	var c *client.Client
	stream := &seqledgerv1.WriteRequest{}
	var waiting []*seqledgerv1.WriteRequest // of a greedy client
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var command struct{ Do, ID, Server, Organization, Vault, ClientID, Set, If string }
		if err := json.Unmarshal(lines.Bytes(), &command); err != nil {
			return 1
		}
		switch command.Do {
		case "open":
			var err error
			if c, err = client.New(client.Options{Server: command.Server, MaxAttempts: 1}); err != nil {
				return 1
			}
			stream.Scope = &seqledgerv1.Scope{Organization: command.Organization, Vault: command.Vault}
			stream.ClientId = command.ClientID
			_ = say.Encode(map[string]any{"event": "opened"})
		case "submit":
			operation := op.Append([]byte(command.ID))
			switch {
			case command.If == "absent":
				operation = op.Set(command.Set, []byte(command.ID), op.IfAbsent())
			case command.If == "present":
				operation = op.Set(command.Set, []byte(command.ID), op.IfPresent())
			}
			if mode == "greedy" {
				waiting = greedyWrite(ctx, c, stream, append(waiting, &seqledgerv1.WriteRequest{
					Operations: []*seqledgerv1.Operation{operation},
				}), say)
				continue
			}
			receipt, err := naiveWrite(ctx, mode, c, stream, operation)
			e := map[string]any{"event": "outcome", "id": command.ID, "outcome": "committed"}
			if err != nil {
				e["outcome"], e["message"] = "not_executed", err.Error()
			} else {
				e["sequence"], e["txId"] = fmt.Sprint(receipt.GetSequence()), receipt.GetTxId()
			}
			_ = say.Encode(e)
		case "resume":
			_ = say.Encode(map[string]any{"event": "resumed"})
		case "close":
			return 0
		}
	}
	return 0
}

// greedyBatch divides the numbers of writes that the cases submit.
const greedyBatch = 40

// greedyWrite sends writes once there are enough of them, under the same numbers and keys until there is an answer. It
// returns the writes that are still waiting.
func greedyWrite(
	ctx context.Context, c *client.Client, stream *seqledgerv1.WriteRequest, waiting []*seqledgerv1.WriteRequest,
	say *json.Encoder,
) []*seqledgerv1.WriteRequest {
	if len(waiting) < greedyBatch {
		return waiting
	}
	for _, w := range waiting {
		stream.Sequence++
		w.Scope, w.ClientId, w.Sequence = stream.GetScope(), stream.GetClientId(), stream.GetSequence()
		w.IdempotencyKey = naiveKey()
	}
	for {
		results := c.WriteBatch(ctx, waiting)
		if slices.ContainsFunc(results, func(r client.BatchResult) bool {
			return r.Err != nil && !errors.Is(r.Err, failure.ErrAlreadyCommitted)
		}) {
			continue
		}
		for i, r := range results {
			_ = say.Encode(map[string]any{"event": "outcome", "outcome": "committed",
				"id":       strings.TrimSpace(string(waiting[i].GetOperations()[0].GetAppend().GetPayload())),
				"sequence": fmt.Sprint(waiting[i].GetSequence()), "txId": r.Receipt.GetTxId()})
		}
		return nil
	}
}

// naiveKey returns a new key.
func naiveKey() string {
	return fmt.Sprintf("%08x-0000-4000-8000-%012x", rand.Uint32(), rand.Uint64N(1<<48))
}

// naiveWrite writes under the next number, until there is an answer.
func naiveWrite(
	ctx context.Context, mode string, c *client.Client, stream *seqledgerv1.WriteRequest,
	operation *seqledgerv1.Operation,
) (*seqledgerv1.Receipt, error) {
	for {
		state, err := c.GetClientState(ctx, &seqledgerv1.GetClientStateRequest{
			Scope: stream.GetScope(), ClientId: stream.GetClientId(),
		})
		var receipt *seqledgerv1.Receipt
		if err == nil {
			w := &seqledgerv1.WriteRequest{
				Scope: stream.GetScope(), ClientId: stream.GetClientId(), Session: state.GetSession(),
				Sequence: state.GetLastCommittedSequence() + 1, Operations: []*seqledgerv1.Operation{operation},
			}
			if mode != "keyless" {
				w.IdempotencyKey = naiveKey()
			}
			receipt, err = c.Write(ctx, w)
		}
		if err == nil || failure.CodeOf(err) != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED {
			return receipt, err
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // A naive client does so.
	}
}
