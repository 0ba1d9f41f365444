package chaos

import (
	"fmt"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// The model takes what registers may do and refuses a read of a value that was overwritten before it began.
func TestRegisters(t *testing.T) {
	t.Parallel()
	put := func(key, value string, from, to int64) porcupine.Operation {
		return porcupine.Operation{
			Input: input{kind: kindPut, key: key, new: value}, Output: output{done: true}, Call: from, Return: to,
		}
	}
	read := func(key, value string, from, to int64) porcupine.Operation {
		return porcupine.Operation{
			ClientId: 1, Input: input{kind: kindRead, key: key}, Output: output{value: value}, Call: from, Return: to,
		}
	}
	swap := func(key, before, after string, done bool, from, to int64) porcupine.Operation {
		return porcupine.Operation{
			ClientId: 2, Input: input{kind: kindSwap, key: key, old: before, new: after}, Output: output{done: done},
			Call: from, Return: to,
		}
	}
	for name, test := range map[string]struct {
		history []porcupine.Operation
		want    porcupine.CheckResult
	}{
		"in order":        {[]porcupine.Operation{put("a", "1", 0, 1), read("a", "1", 2, 3)}, porcupine.Ok},
		"at once, either": {[]porcupine.Operation{put("a", "1", 0, 9), read("a", "", 2, 3)}, porcupine.Ok},
		"stale":           {[]porcupine.Operation{put("a", "1", 0, 1), read("a", "", 2, 3)}, porcupine.Illegal},
		"another key":     {[]porcupine.Operation{put("a", "1", 0, 1), read("b", "", 2, 3)}, porcupine.Ok},
		"swapped": {
			[]porcupine.Operation{put("a", "1", 0, 1), swap("a", "1", "2", true, 2, 3), read("a", "2", 4, 5)},
			porcupine.Ok,
		},
		"swapped from nothing": {
			[]porcupine.Operation{put("a", "1", 0, 1), swap("a", "0", "2", true, 2, 3)}, porcupine.Illegal,
		},
		"refused without cause": {
			[]porcupine.Operation{put("a", "1", 0, 1), swap("a", "1", "2", false, 2, 3)}, porcupine.Illegal,
		},
		"refused": {
			[]porcupine.Operation{put("a", "1", 0, 1), swap("a", "0", "2", false, 2, 3), read("a", "1", 4, 5)},
			porcupine.Ok,
		},
	} {
		l := &workload{operations: test.history}
		f := new(findings)
		if got := l.checkRegisters(f, ""); got != test.want || len(f.problems) > 0 {
			t.Errorf("%s: %s, want %s; %v", name, got, test.want, f.problems)
		}
	}
}

// Each way to fall short is an error of its own.
func TestFindings(t *testing.T) {
	t.Parallel()
	good := findings{linearizable: porcupine.Ok, digests: []string{"a", "a", "a"}}
	must.Do(t, good.err())
	for want, spoil := range map[string]func(*findings){
		"1 duplicates":     func(f *findings) { f.duplicates = 1 },
		"1 lost":           func(f *findings) { f.lost = 1 },
		"1 that nobody":    func(f *findings) { f.never = 1 },
		"not linearizable": func(f *findings) { f.linearizable = porcupine.Illegal },
		"the nodes differ": func(f *findings) { f.digests = []string{"a", "b", "a"} },
		"refused":          func(f *findings) { f.problems = []error{fmt.Errorf("refused")} },
	} {
		f := good
		spoil(&f)
		check.ErrorContains(t, f.err(), want)
	}
}
