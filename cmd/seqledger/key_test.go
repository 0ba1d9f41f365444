package main

import (
	"bytes"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// An operator finds the record of a key, cannot settle it while its owner may come back, and settles it afterwards.
func TestKeyCommands(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := s.client(t)
	reserve := func(key string, lease time.Duration) *seqledgerv1.Ownership {
		r := &seqledgerv1.ReserveRequest{
			Record:    &seqledgerv1.RecordKey{Scope: provenScope, Namespace: "charge", Key: key},
			AttemptId: bytes.Repeat([]byte{7}, 16), Fingerprint: &seqledgerv1.Fingerprint{Digest: make([]byte, 32)},
			Lease: durationpb.New(lease),
		}
		answer := must.Get(c.Reserve(t.Context(), r))(t)
		return &seqledgerv1.Ownership{Record: r.Record, Token: answer.GetToken(), AttemptId: r.AttemptId}
	}
	key := func(verb, key string, more ...string) result {
		return s.do(t, append([]string{"key", verb, "--scope", "acme/main", "--namespace", "charge", key}, more...)...)
	}
	owner := reserve("held", time.Hour)
	key("get", "held").expect(t, exitDone, "pending", "system:anonymous")
	key("purge", "held").expect(t, exitRefused, "still open")
	key("resolve", "held", "--as", "committed").expect(t, exitRefused, "still open")
	must.Get(c.Complete(t.Context(), &seqledgerv1.CompleteRequest{Owner: owner,
		Response: []byte("charged")}))(t)
	key("get", "held").expect(t, exitDone, "committed", "charged")
	key("resolve", "held", "--as", "rejected").expect(t, exitRefused, "another result")

	reserve("lost", time.Second)
	must.Await(t, func() bool {
		record := must.Get(c.GetRecord(t.Context(), &seqledgerv1.GetRecordRequest{
			Record: &seqledgerv1.RecordKey{Scope: provenScope, Namespace: "charge", Key: "lost"}}))(t)
		return record.GetState() == seqledgerv1.RecordState_RECORD_STATE_INDETERMINATE
	}, "the end of its lease")
	list := []string{"key", "list", "--scope", "acme/main"}
	s.do(t, append(list, "--all", "--state", "indeterminate")...).expect(t, exitDone, "indeterminate", "charge")
	key("resolve", "lost", "--as", "rejected", "--response", "no charge", "--ttl", "1h").expect(t, exitDone, "rejected")
	key("get", "lost", "--json").expect(t, exitDone, "RECORD_STATE_REJECTED", "bm8gY2hhcmdl")
	key("purge", "lost").expect(t, exitDone, "purged")
	key("get", "lost").expect(t, exitRefused, "no record of this key")
	key("purge", "never").expect(t, exitRefused, "no record of this key")

	key("get", "a b").expect(t, exitRefused, "record.key")
	s.do(t, append(list, "--all", "--principal", "x")...).expect(t, exitUsage)
	s.do(t, append(list, "--state", "done")...).expect(t, exitUsage, "--state")
	key("resolve", "held").expect(t, exitUsage, "--as")
}
