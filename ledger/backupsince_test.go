package ledger_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/restore"
	"github.com/seqledger/seqledger/ledger/verify"
)

// fill writes until the ledger has n sealed block files more, or nearly, and returns the next sequence.
func fill(t testing.TB, l *ledger.Ledger, from uint64, n int) (next uint64) {
	t.Helper()
	// TestMain seals block files at 100 KiB.
	for range n * 5 {
		mustWrite(t, l, appendWrite("filler", from, make([]byte, 25_000)), machine.Committed)
		from++
	}
	return from
}

// backUpSince makes a backup in memory since another one; nil for a full one.
func backUpSince(t testing.TB, l *ledger.Ledger, name string, since *backupfile.File) *backupfile.File {
	t.Helper()
	o := unlimited
	if since != nil {
		head := must.Get(backupfile.Head(since))(t)
		base := head.Base()
		o.Since = &base
	}
	var b bytes.Buffer
	must.Get(l.Backup(t.Context(), &b, o))(t)
	return &backupfile.File{Name: name, Content: bytes.NewReader(b.Bytes()), Size: int64(b.Len())}
}

func headOf(t testing.TB, f *backupfile.File) backupfile.Info {
	t.Helper()
	head := must.Get(backupfile.Head(f))(t)
	return head
}

// mustBeChain verifies a chain, restores it and expects what a stream has at its end.
func mustBeChain(t *testing.T, last uint64, files ...*backupfile.File) {
	t.Helper()
	var chain []backupfile.File
	for _, f := range files {
		chain = append(chain, *f)
	}
	report, err := verify.Chain(t.Context(), chain, verify.Options{})
	if err != nil || len(report.Problems) != 0 {
		t.Fatalf("verify of %d backups: %v %+v", len(files), err, report)
	}
	dir := filepath.Join(t.TempDir(), "restored")
	info, err := restore.Chain(t.Context(), chain, restoreTo(dir))
	if head := headOf(t, files[len(files)-1]); err != nil || info.Backup.Index != head.Index ||
		info.Backup.Digest != head.Digest {
		t.Fatalf("restore of %d backups: %+v %v", len(files), info, err)
	}
	report, err = verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) != 0 {
		t.Fatalf("verify of what was restored: %v %+v", err, report)
	}
	l := open(t, ledger.Options{Dir: dir})
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		s, _, err := v.Stream(scope, "filler")
		if s.Last != last {
			t.Errorf("the stream is at %d, want %d", s.Last, last)
		}
		return err
	}))
	fill(t, l, last+1, 2)
	closeLedger(t, l)
}

// A full backup and those made since it, whichever of them are there, make the ledger that the last one holds; each has
// only what is new.
func TestBackupSince(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	next := fill(t, l, 1, 4)
	full := backUpSince(t, l, "full", nil)
	same := backUpSince(t, l, "same", full)
	mustBeChain(t, next-1, full, same)
	next = fill(t, l, next, 1)
	one := backUpSince(t, l, "one", same)
	mustBeChain(t, next-1, full, same, one)
	next = fill(t, l, next, 3)
	more := backUpSince(t, l, "more", one)
	mustBeChain(t, next-1, full, same, one, more)
	branch := backUpSince(t, l, "branch", full)
	mustBeChain(t, next-1, full, branch)
	heads := []backupfile.Info{headOf(t, full), headOf(t, same), headOf(t, one), headOf(t, more)}
	if heads[0].Last() < 4 || heads[3].Last() < heads[2].Last()+2 {
		t.Fatalf("the block files end at %d, %d: the test tested too little", heads[0].Last(), heads[3].Last())
	}
	for i := 1; i < len(heads); i++ {
		if heads[i].From != heads[i-1].Last() || !heads[i].Incremental() {
			t.Errorf("backup %d has the files from %d on, and the one before ends with %d", i, heads[i].From,
				heads[i-1].Last())
		}
	}
	if same.Size >= full.Size-3*100<<10 {
		t.Errorf("a backup without anything new has %d bytes, and the full one %d", same.Size, full.Size)
	}
	closeLedger(t, l)
}

// A chain is restored with what is kept when retention has dropped files between its backups, some of them or all.
func TestBackupSinceAfterRetention(t *testing.T) {
	t.Parallel()
	config := machine.Config{EvictionInterval: 1, RetainBytes: 1 << 20}
	l := open(t, ledger.Options{Config: config, CheckpointBytes: 1 << 20})
	retaining(t, l, 1)
	full := backUpSince(t, l, "full", nil)
	retaining(t, l, 151)
	some := backUpSince(t, l, "some", full)
	retaining(t, l, 301)
	all := backUpSince(t, l, "all", some)
	if head := headOf(t, all); head.First <= headOf(t, some).First || head.From < head.First {
		t.Errorf("nothing was dropped between the backups: %+v", head)
	}
	mustBeChain(t, 300, full, some)
	mustBeChain(t, 450, full, some, all)
	closeLedger(t, l)
}

// No backup is made since one of another ledger, of another epoch, of a later index, or of other block files.
func TestBackupSinceRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, ledger.Options{Dir: dir})
	next := fill(t, l, 1, 3)
	early := backUpSince(t, l, "early", nil)
	closeLedger(t, l)
	// A copy that goes on by itself is what nobody must do: the hash of the block files tells.
	copied := filepath.Join(t.TempDir(), "copy")
	must.Do(t, os.CopyFS(copied, os.DirFS(dir)))
	l = open(t, ledger.Options{Dir: dir})
	fill(t, l, next, 3)
	late := backUpSince(t, l, "late", early)

	restored, _ := restoreChain(t, early)
	second := open(t, ledger.Options{Dir: restored})
	fill(t, second, next, 3)
	third := open(t, ledger.Options{Dir: copied})
	lateBase := headOf(t, late)
	refuses(t, third, lateBase.Base(), "is at")
	mustWrite(t, third, appendWrite("other", 1, make([]byte, 60_000)), machine.Committed)
	fill(t, third, next, 6)
	refuses(t, third, lateBase.Base(), "its block files are others")
	earlyBase := headOf(t, early)
	base := earlyBase.Base()
	refuses(t, second, base, "the epoch before a restore")
	refuses(t, open(t, ledger.Options{}), base, "it is of ledger")
	base.Last = 1 << 40
	refuses(t, l, base, "it has block file 1099511627776")
	// The control: with the right one it works, and after a refusal there is room for it.
	backUpSince(t, third, "third", early)
}

func refuses(t *testing.T, l *ledger.Ledger, base backupfile.Base, want string) {
	t.Helper()
	var b bytes.Buffer
	o := unlimited
	o.Since = &base
	_, err := l.Backup(t.Context(), &b, o)
	if !errors.Is(err, backupfile.ErrBase) || !strings.Contains(err.Error(), want) || b.Len() > 0 {
		t.Errorf("%v, want %q; %d bytes are written", err, want, b.Len())
	}
	must.Do(t, l.Err(), "the ledger has stopped")
}

func restoreChain(t testing.TB, files ...*backupfile.File) (dir string, info restore.Info) {
	t.Helper()
	var chain []backupfile.File
	for _, f := range files {
		chain = append(chain, *f)
	}
	dir = filepath.Join(t.TempDir(), "restored")
	info = must.Get(restore.Chain(t.Context(), chain, restoreTo(dir)))(t)
	return dir, info
}

// A chain that is none leaves no directory behind, and a damaged one no ledger.
func TestRestoreRefusesChain(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	next := fill(t, l, 1, 2)
	full := backUpSince(t, l, "full", nil)
	fill(t, l, next, 1)
	since := backUpSince(t, l, "since", full)
	closeLedger(t, l)
	dir := filepath.Join(t.TempDir(), "restored")
	for want, chain := range map[string][]backupfile.File{
		"one is missing":   {*since},
		"not in order":     {*since, *full},
		"the same backup":  {*full, *full},
		"there is none":    {},
		"is damaged at":    {*full, {Name: since.Name, Content: since.Content, Size: since.Size - 1}},
		"begin like a bac": {*full, {Name: "letter", Content: strings.NewReader("dear reader"), Size: 11}},
	} {
		_, err := restore.Chain(t.Context(), chain, restoreTo(dir))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: the directory was made", want)
		}
	}
	// Damage inside is found while it is read.
	b := make([]byte, full.Size)
	must.Get(full.Content.ReadAt(b, 0))(t)
	b[full.Size/2] ^= 4
	damaged := backupfile.File{Name: "damaged", Content: bytes.NewReader(b), Size: full.Size}
	_, err := restore.Chain(t.Context(), []backupfile.File{damaged, *since}, restoreTo(dir))
	if damage, ok := errors.AsType[*backupfile.DamageError](err); !ok || damage.Backup != "damaged" {
		t.Errorf("a damaged base: %v", err)
	}
	check.Equal(t, listing(t, dir), "[CREATING]", "it leaves %s")
	report, err := verify.Chain(t.Context(), []backupfile.File{damaged, *since}, verify.Options{})
	if err != nil || len(report.Problems) != 1 || !strings.HasSuffix(report.Problems[0].Where, " of damaged") {
		t.Errorf("verify of it: %+v, %v", report, err)
	}
	must.Do(t, check.Err(restore.Chain(t.Context(), []backupfile.File{*full, *since}, restoreTo(dir))),
		"the good ones afterwards")
}
