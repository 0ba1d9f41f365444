package writer_test

import (
	"errors"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// watchedUntil watches until there is an error or so many blocks, and returns how many
// there were, and the error.
func watchedUntil(t *testing.T, c *client.Client, blocks int) (seen int, err error) {
	t.Helper()
	for block, err := range c.Watch(t.Context(), &seqledgerv1.WatchRequest{Scope: org}) {
		if err != nil {
			return seen, err
		}
		if seen++; block.GetHeader().GetHeight() != uint64(seen) {
			t.Errorf("block %d came as number %d", block.GetHeader().GetHeight(), seen)
		}
		if seen == blocks {
			return seen, nil
		}
	}
	return seen, nil
}

// TestAWatchFindsAnotherChain: the connection breaks, and the ledger comes back restored
// from a backup. Whether its chain is as long by then, longer or shorter, the watch ends
// with a typed error and yields no block that does not follow.
func TestAWatchFindsAnotherChain(t *testing.T) {
	t.Parallel()
	for name, height := range map[string]uint64{"shorter": 2, "as long": 3, "longer": 9} {
		s, c := start(t)
		s.set(func(s *fakeServer) {
			s.onWatch = func(at uint64) error {
				if at < 3 {
					return nil
				}
				s.set(func(s *fakeServer) { s.chain, s.height, s.onWatch = 1, height, nil })
				return errBroken
			}
		})
		if seen, err := watchedUntil(t, c, 6); seen != 3 || !errors.Is(err, failure.ErrOtherLedger) {
			t.Errorf("%s: want three blocks and ErrOtherLedger, got %d, %v", name, seen, err)
		}
	}
}

// TestAWatchChecksEachBlock against the one before, also over a connection that stays up,
// and against its own hash.
func TestAWatchChecksEachBlock(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*fakeServer)
		want   error
	}{
		"another chain": {func(s *fakeServer) { s.chain = 1 }, failure.ErrOtherLedger},
		"a wrong hash": {func(s *fakeServer) {
			s.onBlock = func(b *seqledgerv1.Block) { b.Hash[0]++ }
		}, failure.ErrProtocol},
		"a changed header": {func(s *fakeServer) {
			s.onBlock = func(b *seqledgerv1.Block) { b.Header.TxCount++ }
		}, failure.ErrProtocol},
		"no header": {func(s *fakeServer) {
			s.onBlock = func(b *seqledgerv1.Block) {
				b.Header = &seqledgerv1.BlockHeader{Height: b.GetHeader().GetHeight()}
			}
		}, failure.ErrProtocol},
		"a hole": {func(s *fakeServer) {
			s.onBlock = func(b *seqledgerv1.Block) { b.Header.Height++ }
		}, failure.ErrProtocol},
	} {
		s, c := start(t)
		s.set(func(s *fakeServer) {
			s.onWatch = func(at uint64) error {
				if at == 2 {
					s.set(test.change)
				}
				return nil
			}
		})
		if seen, err := watchedUntil(t, c, 3); seen != 2 || !errors.Is(err, test.want) {
			t.Errorf("%s: want two blocks and %v, got %d, %v", name, test.want, seen, err)
		}
	}
}

// TestAWatchThatGoesOn: a watch continues over the same chain after a break without an error,
// and repeats the check of the chain if that fails at first.
func TestAWatchThatGoesOn(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	asked := 0
	s.set(func(s *fakeServer) {
		s.onList = func() error {
			if asked++; asked == 1 {
				return connect.NewError(connect.CodeUnavailable, errors.New("not yet"))
			}
			return nil
		}
		s.onWatch = func(at uint64) error {
			if at < 3 {
				return nil
			}
			s.set(func(s *fakeServer) { s.height, s.onWatch = 5, nil })
			return errBroken
		}
	})
	if seen, err := watchedUntil(t, c, 5); seen != 5 || err != nil || asked != 2 {
		t.Errorf("want five blocks, got %d, %v, with %d questions", seen, err, asked)
	}
}
