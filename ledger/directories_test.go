package ledger_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/upgrade"
	"github.com/seqledger/seqledger/ledger/verify"
)

// Data directories of a release go into testdata, so that later programs are tested with them: make old-directories
// NAME=format5.

const (
	makeDirectoriesEnv = "SEQLEDGER_MAKE_DIRECTORIES"
	oldChildEnv        = "SEQLEDGER_OLD_TEST_DIR"

	keptWrites = 350
	keptWindow = 8 // receipts of a stream
	keptKeys   = 12
)

// keptDirectories are those of state format 5 and level 3: after a clean stop, killed, and with dropped history.
var keptDirectories = []string{"format5/clean", "format5/killed", "format5/retained"}

func keptOptions(dir string) ledger.Options {
	config := machine.DefaultConfig()
	config.EvictionInterval, config.ReceiptWindow = 10, keptWindow
	return ledger.Options{
		Dir: dir, Logger: slog.New(slog.DiscardHandler), CheckpointBytes: 48 << 10, LogBytes: 64 << 10, Config: config,
	}
}

// keptKey is a command on a key of a directory: some are reserved alone, others have a response of either size.
func keptKey(i int) *machine.KeyedCommand {
	return &machine.KeyedCommand{
		ID: machine.KeyedID{
			Scope: scope, Namespace: "jobs", Principal: fmt.Sprint("user:", i%3), Key: [32]byte{byte(i)},
		},
		Actor: "client:test", MaxKeys: 100, Command: keyed.Command{
			Kind: keyed.Reserve, AttemptID: keyed.AttemptID{byte(i), 5},
			Lease: int64(keyed.MaxLease), TTL: int64(keyed.MaxTTL),
			Fingerprint: keyed.Fingerprint{Algorithm: 1, Digest: [32]byte{byte(i)}},
		},
	}
}

func keptWrite(i int) *machine.KeyedWrite {
	return &machine.KeyedWrite{
		ID:    machine.KeyedID{Scope: scope, Principal: "client:test", Key: [32]byte{byte(i), 1}},
		Actor: "client:test", TTL: int64(keyed.MaxTTL), MaxKeys: 100,
		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: fmt.Appendf(nil, "by key %d", i)}},
	}
}

// fillKept writes what is in a directory, from one write on, and calls acknowledged behind each.
func fillKept(l *ledger.Ledger, from, to int, acknowledged func(i int, r machine.Receipt) error) error {
	ctx := context.Background()
	for i := from; i < to; i++ {
		out, err := l.Write(ctx, oldWrite(i))
		if err != nil || out.Code != machine.Committed {
			return fmt.Errorf("write %d: %v: %w", i, out.Code, err)
		}
		if key := i / 10; i%10 == 0 && key < keptKeys {
			if err := fillKey(l, key); err != nil {
				return fmt.Errorf("key %d: %w", key, err)
			}
		}
		if err := acknowledged(i, out.Receipt); err != nil {
			return err
		}
	}
	return nil
}

func fillKey(l *ledger.Ledger, key int) error {
	ctx := context.Background()
	c := keptKey(key)
	c.ValidUntil = l.Now() + int64(time.Minute)
	out, err := l.Keyed(ctx, c, 0, nil)
	if err != nil || out.Code != machine.KeyedAcquired {
		return fmt.Errorf("reserve: %v: %w", out.Code, err)
	}
	if key%3 > 0 {
		c.Kind, c.Token, c.TTL = keyed.Complete, out.Keyed.Record.Token, 0
		c.Response = []byte(strings.Repeat("response ", 1+key%3*50))
		if out, err = l.Keyed(ctx, c, 0, nil); err != nil || out.Code != machine.KeyedOK {
			return fmt.Errorf("complete: %v: %w", out.Code, err)
		}
	}
	out, err = l.WriteKeyed(ctx, keptWrite(key), nil)
	if err != nil || out.Code != machine.Committed {
		return fmt.Errorf("keyed write: %v: %w", out.Code, err)
	}
	return nil
}

// keptChild fills a directory, and waits to be killed.
func keptChild(dir string) error {
	l, err := ledger.Open(context.Background(), keptOptions(dir))
	if err != nil {
		return err
	}
	err = fillKept(l, 0, keptWrites, func(i int, r machine.Receipt) error {
		_, err := fmt.Printf("0 %d %d\n", i, r.Index)
		return err
	})
	if err == nil {
		select {} // the parent ends it, by SIGKILL
	}
	return err
}

// TestMakeDirectories makes the directories that this program writes.
func TestMakeDirectories(t *testing.T) {
	t.Parallel()
	into := os.Getenv(makeDirectoriesEnv)
	if into == "" {
		t.Skipf("it makes data directories for later programs to be tested with: make old-directories, or %s=DIR",
			makeDirectoriesEnv)
	}
	must(t, os.MkdirAll(into, 0o700))
	never := func(int, machine.Receipt) error { return nil }
	for name, fill := range map[string]func(t *testing.T, dir string){
		"clean": func(t *testing.T, dir string) {
			t.Helper()
			l := open(t, keptOptions(dir))
			must(t, fillKept(l, 0, keptWrites, never))
			closeLedger(t, l)
		},
		"killed": func(t *testing.T, dir string) {
			t.Helper()
			runAndKill(t, oldChildEnv, dir, keptWrites, map[[2]uint64]uint64{})
		},
		"retained": func(t *testing.T, dir string) {
			t.Helper()
			o := keptOptions(dir)
			o.Config.RetainBlocks = int64(time.Second)
			l := open(t, o)
			must(t, fillKept(l, 0, keptWrites-50, never))
			awaitDropped(t, l)
			must(t, fillKept(l, keptWrites-50, keptWrites, never))
			closeLedger(t, l)
		},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		fill(t, dir)
		report, err := verify.Directory(t.Context(), dir, verify.Options{})
		if err != nil || len(report.Problems) != 0 || (report.Dropped > 0) != (name == "retained") {
			t.Fatalf("%s: %+v, %v", name, report, err)
		}
		text := fmt.Sprintf("writes %d\nindex %d\ndigest %s\n", keptWrites, report.Index, report.Digest)
		must(t, os.WriteFile(filepath.Join(into, name+".txt"), []byte(text), 0o600))
		must(t, packDirectory(dir, filepath.Join(into, name+".tar.gz")))
	}
}

// packDirectory puts a directory into an archive, in which it is named data.
func packDirectory(dir, into string) (err error) {
	file, err := os.Create(into)
	if err != nil {
		return err
	}
	zipped, _ := gzip.NewWriterLevel(file, gzip.BestCompression) // the level is one
	packed := tar.NewWriter(zipped)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(filepath.Dir(dir), path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			name = filepath.ToSlash(name) + "/"
			return packed.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o700})
		}
		content, err := os.ReadFile(path)
		if err == nil {
			err = packed.WriteHeader(&tar.Header{Name: filepath.ToSlash(name), Mode: 0o600, Size: int64(len(content))})
		}
		if err == nil {
			_, err = packed.Write(content)
		}
		return err
	})
	return errors.Join(err, packed.Close(), zipped.Close(), file.Close())
}

// TestKeptDirectories: a directory of this state format, written by a program of before, verifies and needs no upgrade
// command. Every write, key and value that it has is answered as before, and it goes on at the level of this program.
func TestKeptDirectories(t *testing.T) {
	t.Parallel()
	for _, name := range keptDirectories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, writes, index, digest := oldDirectory(t, name)
			check := func(index uint64, digest string) {
				t.Helper()
				report, err := verify.Directory(t.Context(), dir, verify.Options{})
				if err != nil || len(report.Problems) != 0 || index > 0 && report.Index != index ||
					digest != "" && report.Digest.String() != digest {
					t.Fatalf("it verifies as %+v, %v", report, err)
				}
			}
			check(index, digest)
			info, err := upgrade.Directory(t.Context(), dir, upgrade.Options{})
			if err != nil || info.Upgraded || info.Index != index {
				t.Errorf("upgrade: %+v, %v", info, err)
			}
			for range 2 {
				keptIsThere(t, dir, writes, strings.HasSuffix(name, "retained"))
				check(0, "")
			}
		})
	}
}

// keptIsThere starts a ledger on a directory, and asks for everything in it.
func keptIsThere(t *testing.T, dir string, writes int, forgets bool) {
	t.Helper()
	const clients = 7
	l := open(t, ledger.Options{Dir: dir, Clock: standing, Logger: slog.New(slog.DiscardHandler)})
	replayed := 0
	for i := range writes {
		out, err := l.Write(t.Context(), oldWrite(i))
		if err != nil || out.Code != machine.Replayed && out.Code != machine.AlreadyCommitted {
			t.Errorf("write %d: %v %v", i, out.Code, err)
		}
		if out.Code == machine.Replayed {
			replayed++
		}
	}
	if replayed < clients && !forgets || replayed > clients*keptWindow {
		t.Errorf("%d writes are answered with their receipts", replayed)
	}
	if out, err := l.Write(t.Context(), oldWrite(writes+clients)); err != nil || out.Code != machine.SequenceGap {
		t.Errorf("a write behind the next one: %v %v", out.Code, err)
	}
	for key := range keptKeys {
		out, err := l.WriteKeyed(t.Context(), keptWrite(key), nil)
		if err != nil || out.Code != machine.Replayed && out.Code != machine.AlreadyCommitted {
			t.Errorf("keyed write %d: %v %v", key, out.Code, err)
		}
		c := keptKey(key)
		c.AttemptID[1] = 6
		c.ValidUntil = l.Now() + int64(time.Minute)
		want := machine.KeyedReplay
		if key%3 == 0 {
			want = machine.KeyedInFlight
		}
		out, err = l.Keyed(t.Context(), c, 0, nil)
		if err != nil || out.Code != want ||
			key%3 > 0 && len(out.Keyed.Record.Response) != len("response ")*(1+key%3*50) {
			t.Errorf("key %d: %v %v, want %v", key, out.Code, err, want)
		}
	}
	err := l.View(t.Context(), func(v machine.View) error {
		if v.Level() != machine.Level {
			t.Errorf("the ledger is at level %d", v.Level())
		}
		for i := writes - 11; i < writes; i++ {
			e, err := v.Entity(scope, fmt.Sprintf("account/%d", i%11))
			if err != nil || string(e.Value) != fmt.Sprintf("%0100d", i) {
				return fmt.Errorf("account/%d is %q: %w", i%11, e.Value, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	closeLedger(t, l)
}
