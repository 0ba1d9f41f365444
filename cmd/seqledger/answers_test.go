package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/writer"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const repeatedKey = "8f14e45f-ceea-467a-8000-00000000000a"

// TestProofOfAReplay: an honest server answers a repeat with the original
// receipt, also when the repeat leaves the key away, gives one for the first time,
// has another number under the same key, or is made under a newer session (rules 4
// and 6). None of these is a lie.
func TestProofOfAReplay(t *testing.T) {
	t.Parallel()
	s := serve(t)
	write := func(client string, args ...string) result {
		t.Helper()
		return s.do(t, append([]string{"write", "--scope", "acme/main", "--client-id", client, "--set", client + "=1"},
			args...)...)
	}
	for name, test := range map[string]struct{ first, again []string }{
		"key-left-away":    {[]string{"--sequence", "1", "--key", repeatedKey}, []string{"--sequence", "1"}},
		"key-added":        {[]string{"--sequence", "1"}, []string{"--sequence", "1", "--key", repeatedKey}},
		"number-left-away": {[]string{"--key", repeatedKey}, []string{"--key", repeatedKey}},
	} {
		t.Run(name, func(t *testing.T) {
			write(name, test.first...).expect(t, exitDone)
			write(name, test.again...).expect(t, exitDone, "replayed")
			write(name, append(test.again, "--include-proof")...).expect(t, exitDone, "replayed", "checked")
		})
	}
	t.Run("newer-session", func(t *testing.T) {
		write("s", "--sequence", "1", "--key", repeatedKey).expect(t, exitDone)
		opened := s.do(t, "session", "open", "--scope", "acme/main", "--client-id", "s", "--json").expect(t, exitDone)
		session := opened.field(t, "state").(map[string]any)["session"].(string)
		again := []string{"--sequence", "1", "--key", repeatedKey, "--session", session}
		write("s", again...).expect(t, exitDone, "replayed")
		write("s", append(again, "--include-proof")...).expect(t, exitDone, "replayed", "checked")
	})
}

// TestEmptyBlockHash: a script whose variable is empty must not get an
// unchecked answer with exit code 0 from a flag that says "fail unless".
func TestEmptyBlockHash(t *testing.T) {
	t.Parallel()
	s := serve(t)
	id := s.do(t, "write", "--scope", "acme/main", "--client-id", "c", "--set", "a=1",
		"--json").expect(t, exitDone).field(t, "txId").(string)
	s.do(t, "tx", id, "--block-hash", "").expect(t, exitUsage, "in hex or")
}

// TestCommittedAndNotShown: the write is committed, and only its receipt
// cannot be printed. A reader of the answer must not take it for not done.
func TestCommittedAndNotShown(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full here:", err)
	}
	defer full.Close()
	s := serve(t)
	cmd := exec.Command(binary, "write", "--server", s.address, "--scope", "acme/main", "--client-id", "c", "--set",
		"a=1")
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = full, &stderr
	_ = cmd.Run()
	s.do(t, "state", "--scope", "acme/main", "--client-id", "c").expect(t, exitDone, "last sequence      1")
	if !strings.Contains(stderr.String(), "committed") {
		t.Errorf("sequence 1 is committed, and the command ends with %d and does not say so:\n%s",
			cmd.ProcessState.ExitCode(), &stderr)
	}
}

// TestImportedElsewhere: an import that is done says on which ledger, because
// it may be asked about another.
func TestImportedElsewhere(t *testing.T) {
	t.Parallel()
	one, other := serve(t), serve(t)
	args := []string{"import", "--scope", "acme/main", "--client-id", "loader", numberedLines(t, 3)}
	one.do(t, args...).expect(t, exitDone, "imported: all 3")
	other.do(t, args...).expect(t, exitDone, "on ledger "+one.ledgerID, "no server was asked")
}

// TestTokenIsNamed: the message about a token that cannot be one names its flag.
func TestTokenIsNamed(t *testing.T) {
	t.Parallel()
	r := seqledger(t, "SEQLEDGER_TOKEN=a b", "status").expect(t, exitUsage, "--token")
	if strings.Contains(r.stderr, "--server") {
		t.Errorf("--server is right, and is named as wrong: %v", r)
	}
}

// TestConfigValueNamesItsLine although the value is only found wrong when
// the command runs.
func TestConfigValueNamesItsLine(t *testing.T) {
	t.Parallel()
	path := writeFile(t, "c.yaml", "log-level: info\n\ntimeout: 0s\n")
	seqledger(t, "status", "--config", path).expect(t, exitUsage, "--timeout", path+":3")
}

// TestPoisonedWrite: a write that the server cannot read must not end the
// Writers that share its frame.
func TestPoisonedWrite(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := s.client(t)
	open := func(id string) *writer.Writer {
		w := must.Get(writer.Open(t.Context(), c, writer.Options{Scope: provenScope, ClientID: id}))(t)
		return w
	}
	bad, good := open("bad"), open("good")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	plain := func() *seqledgerv1.Operation { return op.Append([]byte("x")) }
	poison := plain()
	poison.ProtoReflect().SetUnknown([]byte{0xf8, 0x06, 1}) // field 111, as a newer program would set it
	stop := make(chan error, 1)
	// Ends when the good writer fails or the poison was answered.
	answered := make(chan struct{})
	go func() {
		for {
			if _, err := good.Write(ctx, plain()); err != nil {
				stop <- err
				return
			}
			select {
			case <-answered:
				stop <- nil
				return
			default:
			}
		}
	}()
	for range 50 {
		_, err := bad.Write(ctx, poison)
		if !errors.Is(err, failure.ErrNotExecuted) {
			t.Errorf("the write can never be executed, and the answer is: %v", err)
			break
		}
		if bad.Err() != nil && bad.Resume(ctx) != nil {
			break
		}
	}
	close(answered)
	must.Do(t, <-stop, "another stream's Writer was ended by it")
}
