package engine

import (
	"fmt"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

func TestCheckpointsGrowWhereTheyCostMuch(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, test := range map[string]struct {
		now, changed, pages, want int64
	}{
		"pages of random records":   {32 * mib, 32 * mib, 300 * mib, 64 * mib},
		"half of it is tolerated":   {64 * mib, 64 * mib, 32 * mib, 64 * mib},
		"just above a half":         {64 * mib, 64 * mib, 32*mib + 1, 128 * mib},
		"never above the bound":     {128 * mib, 128 * mib, 900 * mib, 128 * mib},
		"records that lie together": {128 * mib, 132 * mib, 33*mib - 1, 64 * mib},
		"a quarter is tolerated":    {128 * mib, 132 * mib, 33 * mib, 128 * mib},
		"never below the bound":     {32 * mib, 32 * mib, 2 * mib, 32 * mib},
		"a small one tells nothing": {64 * mib, 10 * mib, 90 * mib, 64 * mib},
		"nothing written yet":       {32 * mib, 0, 0, 32 * mib},
	} {
		e := New(1, 1)
		e.jobs.checkpointBytes = test.now
		e.JobDone(Job{Kind: Flush}, JobResult{Changed: test.changed, Pages: test.pages})
		check.Equal(t, e.CheckpointBytes(), test.want, "%s: got %d", name)
		e.SetCheckpointBytes(test.now, 0)
		e.JobDone(Job{Kind: Flush}, JobResult{Changed: test.changed, Pages: test.pages})
		if got := e.CheckpointBytes(); got != test.now {
			t.Errorf("%s: a configured size becomes %d, was %d", name, got, test.now)
		}
	}
}

func TestTheFirstCheckpointGoesByTheState(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for state, want := range map[int64]int64{
		0: 32 * mib, 512 * mib: 32 * mib, 512*mib + 16: 32*mib + 1, 1024 * mib: 64 * mib, 2048 * mib: 128 * mib,
		1 << 50: 128 * mib,
	} {
		e := New(1, 1)
		if e.SetCheckpointBytes(0, state); e.CheckpointBytes() != want {
			t.Errorf("with a state of %d bytes: %d, want %d", state, e.CheckpointBytes(), want)
		}
	}
}

// Nothing is proposed above some checkpoints' worth of changes, unless the engine has failed; and then a checkpoint is
// the next job.
func TestProposalsWaitAboveTheCheckpoint(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for due, most := range map[int64]int64{16 << 10: 64 << 10, 32 * mib: 128 * mib, 64 * mib: 128 * mib,
		256 * mib: 512 * mib} {
		e := New(1<<20, 1)
		e.SetCheckpointBytes(due, 0)
		s := new(Submission)
		s.Add(Origin{}, []byte("x"), 1)
		e.Submit(s, false)
		for _, test := range []struct {
			changes int64
			may     bool
		}{{most, true}, {most + 1, false}} {
			if e.Gather(Gathered{Changes: test.changes}); e.MayCut() != test.may || e.LacksRoom() == test.may {
				t.Errorf("a checkpoint of %d bytes, %d of changes: may be proposed %v, want %v", due, test.changes,
					e.MayCut(), test.may)
			}
		}
		if spans, _, _ := e.Lead(); len(spans) > 0 || e.alone {
			t.Error("a caller leads above the bound")
		}
		if job := e.NextJob(); job.Kind != Flush {
			t.Errorf("the job is %v", job)
		}
		if e.Fail(); !e.MayCut() || e.HasJob() {
			t.Error("after a failure what is queued waits, or there are jobs")
		}
	}
}

// script is a host that does what the engine says, and the jobs that it has done.
type script struct {
	*testing.T
	*Engine

	done string
}

// do does the next job.
func (s *script) do(r JobResult) Job {
	s.Helper()
	job := s.NextJob()
	if job.Kind == NoJob {
		s.Fatalf("no job is due after%s", s.done)
	}
	if s.HasJob() || s.NextJob().Kind != NoJob {
		s.Error("two jobs at a time")
	}
	s.JobDone(job, r)
	names := [...]string{Flush: "flush", SyncBlocks: "sync", Truncate: "truncate", Carry: "carry", Drop: "drop",
		Sweep: "sweep"}
	s.done += " " + names[job.Kind]
	if job.UpTo > 0 {
		s.done += fmt.Sprint(job.UpTo)
	}
	s.done += string(job.From)
	return job
}

func (s *script) want(done string) {
	s.Helper()
	if s.HasJob() || s.done != done {
		s.Errorf("the jobs were%s, one more: %v; want%s", s.done, s.HasJob(), done)
	}
}

func newScript(t *testing.T) *script {
	t.Helper()
	s := &script{T: t, Engine: New(1<<20, 1)}
	s.SetCheckpointBytes(1_000, 0)
	s.want("")
	return s
}

func TestWhatMakesAJobDue(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		gathered Gathered
		want     string
	}{
		"changes":           {Gathered{Changes: 1_000, Blocks: 250}, " flush"},
		"tombstones":        {Gathered{Changes: 999, Tombstones: maxTombstones}, " flush"},
		"blocks":            {Gathered{Changes: 999, Tombstones: maxTombstones - 1, Blocks: 250}, " sync"},
		"not enough blocks": {Gathered{Changes: 999, Tombstones: maxTombstones - 1, Blocks: 249}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t)
			if s.Gather(test.gathered); test.want != "" {
				s.do(JobResult{})
			}
			s.want(test.want)
		})
	}
	s := newScript(t)
	s.SetCheckpointBytes(1, 0) // a quarter of it is none
	s.want("")
	s.SetCheckpointBytes(1<<30, 0)
	s.Gather(Gathered{Blocks: maxUnsyncedBlocks})
	s.do(JobResult{})
	s.want(" sync")
}

// A long log is truncated behind a checkpoint that began after it was found to be long, no further than that covers.
func TestTruncationFollowsACheckpoint(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	s.JobDone(Job{Kind: Flush}, JobResult{Covered: 5})
	long := Gathered{LongLog: true}
	s.Gather(long)
	s.do(JobResult{Gathered: long, Covered: 9})
	s.Gather(long)
	s.do(JobResult{})
	s.want(" flush truncate9")
	s.Gather(long)
	s.do(JobResult{Gathered: long, Covered: 9}) // nothing was applied
	s.want(" flush truncate9 flush")
	s.JobDone(Job{Kind: Flush}, JobResult{Gathered: long, Covered: 12}) // somebody else wanted it
	s.do(JobResult{Gathered: long})                                     // as much was appended before it was told
	s.Gather(long)
	s.do(JobResult{Gathered: long, Covered: 15})
	s.do(JobResult{})
	s.want(" flush truncate9 flush truncate12 flush truncate15")
}

// Files are removed behind a checkpoint that began after the last value was carried, in steps between which other jobs
// are done, however many are due.
func TestRemoval(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	s.Remove(7)
	s.Remove(9) // it waits for its turn
	due := Gathered{Changes: 1_000}
	s.do(JobResult{Gathered: due, Next: []byte("a")})
	s.do(JobResult{Gathered: due}) // not the checkpoint that covers what is carried
	s.do(JobResult{Gathered: Gathered{Blocks: 250}})
	s.JobDone(Job{Kind: Flush}, JobResult{Gathered: Gathered{Blocks: 250}}) // it may have begun before
	s.do(JobResult{})
	s.do(JobResult{})
	s.do(JobResult{Gathered: due})
	s.do(JobResult{})
	s.do(JobResult{Next: []byte("b")})
	s.do(JobResult{})
	s.want(" carry7 flush carry7a sync flush7 drop7 flush sweep7 sweep7b")
	s.Remove(9)
	s.do(JobResult{Gathered: due})
	s.do(JobResult{}) // both at once
	s.do(JobResult{Refused: true})
	s.want(" carry7 flush carry7a sync flush7 drop7 flush sweep7 sweep7b carry9 flush9 drop9")
}
