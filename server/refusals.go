package server

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// maxRefusals is how many refusals are kept. A refusal takes at most some 1.5 KiB.
const maxRefusals = 256

// refusals keeps the last refused commands, so that an operator finds the client whose refusals a counter shows.
type refusals struct {
	// mu is held for one copy of the ring at most, because every refused write takes it.
	mu   sync.Mutex
	last uint64 // how many there were; the newest has this number
	ring [maxRefusals]refused
}

// refused is a refused command.
type refused struct {
	about   subject
	at      time.Time
	code    seqledgerv1.WriteErrorCode
	by      method
	message string
}

// subject names a command by what an operator may see of it.
type subject struct {
	scope    machine.Scope
	clientID string
	sequence uint64
}

// add keeps a refusal in place of the oldest one.
func (r *refusals) add(entry refused) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring[r.last%maxRefusals] = entry
	r.last++
}

// after returns the refusals with numbers above n, the oldest first, and the number of the newest one. All that are
// kept have numbers above one that was not given out yet.
func (r *refusals) after(n uint64) (entries []refused, last uint64) {
	entries = make([]refused, 0, maxRefusals) // so that nothing is allocated under the lock
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > r.last {
		n = 0
	}
	n = max(n, r.last-min(r.last, maxRefusals))
	for ; n < r.last; n++ {
		entries = append(entries, r.ring[n%maxRefusals])
	}
	return entries, r.last
}

// refused counts a refused command and keeps it.
func (s *Server) refused(by method, e *seqledgerv1.WriteError, about subject) {
	s.metrics.refusal(by, e.Code)
	message := e.Message
	if e.Code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT {
		// Its text may repeat what the client has sent.
		message = "the request is invalid"
		if field := knownField(e.Field); field != "" {
			message = field + " is invalid"
		}
	}
	s.refusals.add(refused{about: about, at: time.Now(), code: e.Code, by: by, message: wire.Clip(message)})
}

// knownField returns the beginning of a field's path that has only names of the API: the rest is what a client has made
// up.
func knownField(path string) string {
	known := 0
	fields := (*seqledgerv1.WriteBatchRequest)(nil).ProtoReflect().Descriptor().Fields()
	if !strings.HasPrefix(path, "writes[") {
		fields = (*seqledgerv1.WriteRequest)(nil).ProtoReflect().Descriptor().Fields()
	}
	for end := 0; end < len(path) && fields != nil; {
		if known > 0 {
			end++ // the dot
		}
		segment, _, _ := strings.Cut(path[end:], ".")
		name, index, indexed := strings.Cut(segment, "[")
		field := fields.ByTextName(name)
		if field == nil {
			break
		}
		if _, err := strconv.ParseUint(strings.TrimSuffix(index, "]"), 10, 32); indexed && err != nil {
			break
		}
		end += len(segment)
		known = end
		if fields = nil; field.Kind() == protoreflect.MessageKind {
			fields = field.Message().Fields()
		}
	}
	return path[:known]
}

// subjectOf returns what a request is about. It keeps nothing else of the request.
func subjectOf(m any) subject {
	switch m := m.(type) {
	case *seqledgerv1.WriteRequest:
		return subjectOfWrite(m)
	case *seqledgerv1.OpenSessionRequest:
		return clipped(subject{wire.Scope(m.GetScope()), m.GetClientId(), 0})
	}
	return subject{}
}

// subjectOfWrite is subjectOf for a write, which may be invalid or nil.
func subjectOfWrite(m *seqledgerv1.WriteRequest) subject {
	return clipped(subject{wire.Scope(m.GetScope()), m.GetClientId(), m.GetSequence()})
}

// clipped bounds the memory of names that may be longer than valid ones.
func clipped(about subject) subject {
	about.scope.Organization = clip(about.scope.Organization, machine.MaxScopePart)
	about.scope.Vault = clip(about.scope.Vault, machine.MaxScopePart)
	about.clientID = clip(about.clientID, machine.MaxClientID)
	return about
}

// clip returns a text of at most limit bytes that does not keep the memory of a longer one.
func clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.Clone(strings.ToValidUTF8(text[:limit], ""))
}

// commandError is an error of a call that has one command.
type commandError struct {
	error

	about subject
}

// Unwrap returns what went wrong.
func (e *commandError) Unwrap() error { return e.error }

// aboutCommand adds a command to the error of its call; nil stays nil.
func aboutCommand(err error, about subject) error {
	if err == nil {
		return nil
	}
	return &commandError{err, about}
}

// listRefusals lists the newest refusals.
func (s *Server) listRefusals(
	_ context.Context, m *seqledgerv1.ListRefusalsRequest,
) (*seqledgerv1.ListRefusalsResponse, error) {
	entries, last := s.refusals.after(m.GetAfter())
	answer := &seqledgerv1.ListRefusalsResponse{Last: last}
	for i := range entries {
		entry := &entries[i]
		rendered := &seqledgerv1.Refusal{
			Number: last - uint64(len(entries)-1-i), Time: timestamppb.New(entry.at), Code: entry.code,
			Method: methodNames[entry.by], ClientId: entry.about.clientID, Sequence: entry.about.sequence,
			Message: entry.message,
		}
		if entry.about.scope.Organization != "" {
			rendered.Scope = wire.RenderScope(entry.about.scope)
		}
		answer.Refusals = append(answer.Refusals, rendered)
	}
	return answer, nil
}
