package wire

import (
	"crypto/sha256"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const keyedCaller = "client:shop"

func recordKey() *seqledgerv1.RecordKey {
	return &seqledgerv1.RecordKey{Scope: &seqledgerv1.Scope{Organization: "acme"}, Namespace: "charge", Key: "order-1"}
}

// reserveRequest is a Reserve in which everything is set, each time to another value.
func reserveRequest() *seqledgerv1.ReserveRequest {
	return &seqledgerv1.ReserveRequest{
		Record: recordKey(), AttemptId: []byte(strings.Repeat("a", 16)),
		Fingerprint: &seqledgerv1.Fingerprint{Algorithm: 255, Digest: make([]byte, sha256.Size)},
		Lease:       durationpb.New(2 * time.Second), Ttl: durationpb.New(3 * time.Second),
		Wait: durationpb.New(4 * time.Second), ValidUntil: &timestamppb.Timestamp{Seconds: 5},
		OnLeaseExpired: seqledgerv1.LeaseExpiry_LEASE_EXPIRY_TAKEOVER,
	}
}

func TestReserveCommand(t *testing.T) {
	t.Parallel()
	c, wait, err := ReserveCommand(reserveRequest(), keyedCaller, 7, KeyTimes{})
	must.Do(t, err)
	want := machine.KeyedID{
		Scope: machine.Scope{Organization: "acme"}, Namespace: "charge", Principal: keyedCaller,
		Key: sha256.Sum256([]byte("order-1")),
	}
	if c.ID != want || c.Actor != keyedCaller || c.MaxKeys != 7 || c.Kind != keyed.Reserve {
		t.Errorf("the record is %+v of %s, at most %d", c.ID, c.Actor, c.MaxKeys)
	}
	if c.Lease != int64(2*time.Second) || c.TTL != int64(3*time.Second) || wait != 4*time.Second ||
		c.ValidUntil != int64(5*time.Second) || c.Policy != keyed.TakeOver || c.Fingerprint.Algorithm != 255 {
		t.Errorf("got %+v, wait %s", c, wait)
	}

	// What is left open is resolved here, because the state machine sees no defaults.
	open := reserveRequest()
	open.Lease, open.Ttl, open.Wait, open.ValidUntil, open.OnLeaseExpired = nil, nil, nil, nil, 0
	open.Record.Principal = "ann"
	c, wait, err = ReserveCommand(open, keyedCaller, 0, KeyTimes{})
	must.Do(t, err)
	if c.Lease != int64(time.Minute) || c.TTL != int64(24*time.Hour) || wait != 0 || c.ValidUntil != 0 ||
		c.Policy != keyed.BecomeIndeterminate || c.ID.Principal != "ann" || c.Actor != keyedCaller {
		t.Errorf("got %+v, wait %s", c, wait)
	}
	// Nanoseconds since 1970 fit into 64 bits from 1678 to 2262 alone. What is outside is no other time, and never 0,
	// which means unset.
	for at, want := range map[time.Time]int64{
		time.Unix(-5, 0):                              1,
		time.Unix(0, 0):                               1,
		time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC):      1,
		time.Date(1500, 1, 1, 0, 0, 0, 0, time.UTC):   1,
		time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC):   math.MaxInt64,
		time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC): math.MaxInt64,
		time.Unix(0, math.MaxInt64).Add(-time.Second): math.MaxInt64 - int64(time.Second),
		time.Date(1970, 1, 1, 0, 0, 1, 500, time.UTC): int64(time.Second) + 500,
	} {
		open.ValidUntil = timestamppb.New(at)
		if c, _, err = ReserveCommand(open, keyedCaller, 0, KeyTimes{}); err != nil || c.ValidUntil != want {
			t.Errorf("valid until %s: %d, %v, want %d", at, c.ValidUntil, err, want)
		}
	}
}

// refusedField fails unless err is about a field and says why.
func refusedField(t *testing.T, name string, err error, field, says string) {
	t.Helper()
	refusal, ok := errors.AsType[*machine.FieldError](err)
	if !ok || refusal.Field != field || !strings.Contains(refusal.Problem, says) {
		t.Errorf("%s: got %v, want the field %s and %q", name, err, field, says)
	}
}

// TestReserveNamesTheField: each mistake is answered with the path of its field in the request.
func TestReserveNamesTheField(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change      func(m *seqledgerv1.ReserveRequest)
		field, says string
	}{
		"no record": {func(m *seqledgerv1.ReserveRequest) { m.Record = nil }, "record", "required"},
		"no scope":  {func(m *seqledgerv1.ReserveRequest) { m.Record.Scope = nil }, "record.scope", "required"},
		"no organization": {func(m *seqledgerv1.ReserveRequest) { m.Record.Scope.Organization = "" },
			"record.scope.organization", ""},
		"no key": {func(m *seqledgerv1.ReserveRequest) { m.Record.Key = "" }, "record.key", "required"},
		"long key": {func(m *seqledgerv1.ReserveRequest) { m.Record.Key = strings.Repeat("k", 257) },
			"record.key", "257"},
		"blank":  {func(m *seqledgerv1.ReserveRequest) { m.Record.Key = "a b" }, "record.key", "byte 1"},
		"umlaut": {func(m *seqledgerv1.ReserveRequest) { m.Record.Key = "ü" }, "record.key", "byte 0"},
		"short attempt": {func(m *seqledgerv1.ReserveRequest) { m.AttemptId = m.AttemptId[1:] },
			"attempt_id", "16 bytes, has 15"},
		"zero attempt": {func(m *seqledgerv1.ReserveRequest) { m.AttemptId = make([]byte, 16) },
			"attempt_id", "all zeros"},
		"no fingerprint": {func(m *seqledgerv1.ReserveRequest) { m.Fingerprint = nil }, "fingerprint", "required"},
		"large algorithm": {func(m *seqledgerv1.ReserveRequest) { m.Fingerprint.Algorithm = 256 },
			"fingerprint.algorithm", "256"},
		"short digest": {func(m *seqledgerv1.ReserveRequest) { m.Fingerprint.Digest = nil },
			"fingerprint.digest", "32 bytes, has 0"},
		"unknown policy": {func(m *seqledgerv1.ReserveRequest) { m.OnLeaseExpired = 99 }, "on_lease_expired", "99"},
		"no time": {func(m *seqledgerv1.ReserveRequest) { m.ValidUntil.Nanos = -1 },
			"valid_until", "not a valid time"},
		"short lease": {func(m *seqledgerv1.ReserveRequest) { m.Lease = durationpb.New(time.Second - 1) },
			"lease", "must be 1s to"},
		"long lease": {func(m *seqledgerv1.ReserveRequest) { m.Lease = durationpb.New(keyed.MaxLease + 1) },
			"lease", "must be 1s to"},
		"no duration": {func(m *seqledgerv1.ReserveRequest) { m.Lease.Seconds = math.MaxInt64 },
			"lease", "not a valid duration"},
		"short ttl": {func(m *seqledgerv1.ReserveRequest) { m.Ttl = durationpb.New(0) }, "ttl", "must be 1s to"},
		"long ttl": {func(m *seqledgerv1.ReserveRequest) { m.Ttl = durationpb.New(keyed.MaxTTL + 1) },
			"ttl", "must be 1s to"},
		"forgotten before its result": {func(m *seqledgerv1.ReserveRequest) {
			m.Ttl, m.ForgetAfter = durationpb.New(time.Hour), durationpb.New(time.Minute)
		}, "forget_after", "must be 1h0m0s to"},
		"never and a time": {func(m *seqledgerv1.ReserveRequest) {
			m.NeverForget, m.ForgetAfter = true, durationpb.New(keyed.MaxTTL)
		}, "forget_after", "unset with never_forget"},
		"long wait": {func(m *seqledgerv1.ReserveRequest) { m.Wait = durationpb.New(time.Minute + 1) },
			"wait", "must be 0s to 1m0s"},
		"negative wait": {func(m *seqledgerv1.ReserveRequest) { m.Wait = durationpb.New(-1) },
			"wait", "must be 0s to 1m0s"},
	} {
		m := reserveRequest()
		test.change(m)
		_, _, err := ReserveCommand(m, keyedCaller, 0, KeyTimes{})
		refusedField(t, name, err, test.field, test.says)
	}
	longest := reserveRequest()
	longest.Record.Key = strings.Repeat("~", 256)
	longest.Lease, longest.Ttl = durationpb.New(keyed.MaxLease), durationpb.New(keyed.MaxTTL)
	longest.Wait = durationpb.New(time.Minute)
	if _, _, err := ReserveCommand(longest, keyedCaller, 0, KeyTimes{}); err != nil {
		t.Errorf("the largest of all: %v", err)
	}
}

func TestOwnerCommand(t *testing.T) {
	t.Parallel()
	owner := &seqledgerv1.Ownership{Record: recordKey(), AttemptId: []byte(strings.Repeat("a", 16)), Token: 9}
	c, err := OwnerCommand(owner, keyedCaller, keyed.Command{Kind: keyed.Complete, Response: []byte("r")})
	if err != nil || c.Token != 9 || c.Kind != keyed.Complete || string(c.Response) != "r" ||
		c.ID.Principal != keyedCaller {
		t.Errorf("got %+v, %v", c, err)
	}
	for name, test := range map[string]struct {
		change      func(m *seqledgerv1.Ownership)
		field, says string
	}{
		"no record":  {func(m *seqledgerv1.Ownership) { m.Record = nil }, "owner.record", "required"},
		"no key":     {func(m *seqledgerv1.Ownership) { m.Record.Key = "" }, "owner.record.key", "required"},
		"no attempt": {func(m *seqledgerv1.Ownership) { m.AttemptId = nil }, "owner.attempt_id", "16 bytes"},
		"no token":   {func(m *seqledgerv1.Ownership) { m.Token = 0 }, "owner.token", "required"},
	} {
		m := proto.CloneOf(owner)
		test.change(m)
		_, err := OwnerCommand(m, keyedCaller, keyed.Command{})
		refusedField(t, name, err, test.field, test.says)
	}
	_, err = OwnerCommand(nil, keyedCaller, keyed.Command{})
	refusedField(t, "nothing", err, "owner", "required")
}

func TestKeyedWriteCommand(t *testing.T) {
	t.Parallel()
	request := func() *seqledgerv1.WriteRequest {
		return &seqledgerv1.WriteRequest{
			Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "main"}, ClientId: "loader", Namespace: "charge",
			IdempotencyKey: "order-1", Operations: []*seqledgerv1.Operation{
				{Operation: &seqledgerv1.Operation_SetEntity{SetEntity: &seqledgerv1.SetEntity{Key: "k"}}},
				{Operation: &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{Payload: []byte("x")}}},
			},
		}
	}
	w := must.Get(KeyedWrite(request(), keyedCaller, 3, KeyTimes{}))(t)
	if len(w.Operations) != 2 || string(w.Operations[0].Key) != "k" || w.TTL != int64(24*time.Hour) ||
		w.ID.Principal != keyedCaller || w.ClientID != "loader" || w.MaxKeys != 3 {
		t.Errorf("got %+v", w)
	}
	for name, test := range map[string]struct {
		change      func(m *seqledgerv1.WriteRequest)
		field, says string
	}{
		"a session": {func(m *seqledgerv1.WriteRequest) { m.Session = 1 }, "session", "must be 0"},
		"no scope":  {func(m *seqledgerv1.WriteRequest) { m.Scope = nil }, "scope", "required"},
		"bad key":   {func(m *seqledgerv1.WriteRequest) { m.IdempotencyKey = "\n" }, "idempotency_key", "byte 0"},
		"bad ttl":   {func(m *seqledgerv1.WriteRequest) { m.Ttl = durationpb.New(1) }, "ttl", "must be 1s to"},
		"no operation": {func(m *seqledgerv1.WriteRequest) { m.Operations[1] = nil },
			"operations[1]", ""},
	} {
		m := request()
		test.change(m)
		_, err := KeyedWrite(m, keyedCaller, 0, KeyTimes{})
		refusedField(t, name, err, test.field, test.says)
	}
	for _, test := range []struct {
		sequence uint64
		key      string
		want     bool
	}{{0, "k", true}, {1, "k", false}, {0, "", false}} {
		m := &seqledgerv1.WriteRequest{Sequence: test.sequence, IdempotencyKey: test.key}
		check.Equal(t, IsKeyed(m), test.want,
			"sequence %d, key %q: keyed %t: got %v", test.sequence, test.key, !test.want)
	}
}

// TestTimesOfResults: an owner that leaves the time open keeps that of its Reserve, and a refusal is known for a
// minute, so that a client can correct its request and try again.
func TestTimesOfResults(t *testing.T) {
	t.Parallel()
	lease := func(d *durationpb.Duration) (int64, error) {
		return Lease(&seqledgerv1.HeartbeatRequest{Lease: d}, KeyTimes{})
	}
	rejected := func(d *durationpb.Duration) (int64, error) { return RejectedTTL(d, KeyTimes{}) }
	if got, err := Lease(&seqledgerv1.HeartbeatRequest{End: true}, KeyTimes{}); got != 0 || err != nil {
		t.Errorf("the end of a lease is %d, %v", got, err)
	}
	_, err := Lease(&seqledgerv1.HeartbeatRequest{End: true, Lease: durationpb.New(time.Minute)}, KeyTimes{})
	refusedField(t, "the end of a lease that lasts", err, "lease", "must be unset with end")
	for name, test := range map[string]struct {
		resolve       func(*durationpb.Duration) (int64, error)
		unset         time.Duration
		field         string
		least, beyond time.Duration
	}{
		"lease":     {lease, time.Minute, "lease", time.Second, keyed.MaxLease + 1},
		"completed": {CompletedTTL, 0, "ttl", time.Second, keyed.MaxTTL + 1},
		"rejected":  {rejected, time.Minute, "ttl", time.Second, keyed.MaxTTL + 1},
	} {
		check.Equal(t, must.Get(test.resolve(nil))(t), int64(test.unset), "%s: unset is %d", name)
		check.Equal(t, must.Get(test.resolve(durationpb.New(test.least)))(t), int64(test.least), "%s: the least is %d",
			name)
		for _, wrong := range []time.Duration{test.least - 1, test.beyond, -time.Second} {
			_, err := test.resolve(durationpb.New(wrong))
			refusedField(t, name, err, test.field, "must be")
		}
	}
}

// TestTimesOfAServer: a server may have other times for what requests leave open, and no others for what they say.
func TestTimesOfAServer(t *testing.T) {
	t.Parallel()
	times := KeyTimes{Lease: time.Hour, TTL: 2 * time.Hour, RejectedTTL: 3 * time.Hour}
	open, said := reserveRequest(), reserveRequest()
	open.Lease, open.Ttl = nil, nil
	for m, want := range map[*seqledgerv1.ReserveRequest][2]time.Duration{
		open: {time.Hour, 2 * time.Hour}, said: {2 * time.Second, 3 * time.Second},
	} {
		c, _, err := ReserveCommand(m, keyedCaller, 0, times)
		if err != nil || c.Lease != int64(want[0]) || c.TTL != int64(want[1]) {
			t.Errorf("got %+v, %v, want %v", c, err, want)
		}
	}
	lease, err := Lease(new(seqledgerv1.HeartbeatRequest), times)
	rejected, err2 := RejectedTTL(nil, times)
	if err != nil || err2 != nil || lease != int64(time.Hour) || rejected != int64(3*time.Hour) {
		t.Errorf("a lease of %d, a refusal of %d: %v, %v", lease, rejected, err, err2)
	}
	write := &seqledgerv1.WriteRequest{
		Scope: &seqledgerv1.Scope{Organization: "acme"}, IdempotencyKey: "k",
		Operations: []*seqledgerv1.Operation{{Operation: &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{}}}},
	}
	check.Equal(t, must.Get(KeyedWrite(write, keyedCaller, 0, times))(t).TTL, int64(2*time.Hour), "a keyed write: %+v")
}

// TestKeyedNamesOfTheAPI: the machine and the API have the same outcomes and states.
func TestKeyedNamesOfTheAPI(t *testing.T) {
	t.Parallel()
	for number, name := range seqledgerv1.RecordOutcome_name {
		code := keyed.CodeOf(seqledgerv1.RecordOutcome(number))
		if want := "RECORD_OUTCOME_" + code.String(); number != 0 && name != want || number == 0 && code != 0 {
			t.Errorf("outcome %d is %s in the API and %s in package keyed", number, name, want)
		}
		if got := RecordOutcome(machine.Keyed(code)); code != 0 && got.String() != name {
			t.Errorf("outcome %s is rendered as %s", name, got)
		}
	}
	for _, number := range []int32{-1, int32(keyed.LastCode) + 1, 257} {
		check.Equal(t, keyed.CodeOf(number), 0, "number %d is taken for %s", number)
	}
	if len(recordStates) != len(seqledgerv1.RecordState_name)-1 {
		t.Errorf("%d states of %d have a name", len(recordStates), len(seqledgerv1.RecordState_name)-1)
	}
	states := map[seqledgerv1.RecordState]bool{0: true}
	for state := range recordStates {
		k := &machine.KeyedRecord{ID: machine.KeyedID{Namespace: "n"}}
		k.ResponseSize = 4
		k.State, k.Response, k.Checkpoint = state, []byte("resp"), []byte("check")
		whole, short := RenderRecord(k, true), RenderRecord(k, false)
		if states[whole.State] {
			t.Errorf("%v is %v, as another one is", state, whole.State)
		}
		states[whole.State] = true
		if short.Response != nil || short.Checkpoint != nil || short.ResponseSize != 4 || short.Namespace != "n" {
			t.Errorf("%v: a list must have no contents: %v", state, short)
		}
		if (whole.Fingerprint == nil) != (state == keyed.Written) {
			t.Errorf("%v: a record has a fingerprint if it was reserved: %v", state, whole)
		}
	}
}
