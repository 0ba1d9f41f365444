package core_test

import (
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
)

func wireMessages() []*pb.Message {
	from, to, term, index := uint64(1), uint64(2), uint64(7), uint64(99)
	return []*pb.Message{
		{Type: pb.MsgHeartbeat.Enum(), From: &from, To: &to, Term: &term},
		{Type: pb.MsgApp.Enum(), From: &from, To: &to, Term: &term, Index: &index, Entries: []*pb.Entry{
			{Term: &term, Index: &index, Data: make([]byte, 300)},
		}},
		{},
	}
}

// Messages survive encoding and decoding unchanged, and MessageBytes gives their size in advance.
func TestMessagesOnTheWire(t *testing.T) {
	t.Parallel()
	var b []byte
	for _, m := range wireMessages() {
		before := len(b)
		var err error
		if b, err = core.AppendMessage(b, m); err != nil || len(b)-before != core.MessageBytes(m) {
			t.Fatalf("%v: %d bytes, and %d were said: %v", m, len(b)-before, core.MessageBytes(m), err)
		}
	}
	got, err := core.DecodeMessages(b)
	if err != nil || len(got) != len(wireMessages()) {
		t.Fatalf("%d messages: %v", len(got), err)
	}
	clear(b)
	for i, m := range wireMessages() {
		if !proto.Equal(got[i], m) {
			t.Errorf("message %d: %v, want %v", i, got[i], m)
		}
	}
}

// FuzzDecodeMessages: for any bytes, decoding ends with messages or an error.
func FuzzDecodeMessages(f *testing.F) {
	var b []byte
	for _, m := range wireMessages() {
		b, _ = core.AppendMessage(b, m)
	}
	f.Add(b)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		messages, err := core.DecodeMessages(b)
		if err == nil && len(b) > 0 && len(messages) == 0 || err != nil && messages != nil {
			t.Errorf("%d messages of %d bytes, %v", len(messages), len(b), err)
		}
	})
}
