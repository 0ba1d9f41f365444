package idempotency

import (
	"context"
	"fmt"
	"time"
)

// CanonicalJSON is canonicalJSON.
var CanonicalJSON = canonicalJSON

// MemoryOf returns a store in memory with other limits.
func MemoryOf(entries, bytes int) Store { return NewStore(newMemory(entries, bytes)) }

// MemoryBackend returns the backend of a store in memory.
func MemoryBackend() interface {
	Backend
	Notifier
	TokenSource
} {
	return newMemory(memoryEntries, memoryBytes)
}

// CleanUp removes the expired values of a store in memory.
func CleanUp(b Backend) {
	m := b.(*memory) //nolint:forcetypeassert // MemoryBackend's
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cleaned = time.Time{}
	m.cleanUp()
}

// AddToJournal adds a result to a journal.
func AddToJournal(j *Journal, key RecordKey, response []byte) error {
	return AddOwned(j, Ownership{key, 1, NewAttemptID()}, response)
}

// AddOwned adds the result of an owner to a journal.
func AddOwned(j *Journal, owner Ownership, response []byte) error {
	return j.add(&journalEntry{Kind: resultCommitted, Owner: owner, Result: Result{Response: response}})
}

// DecodeStored decodes a stored response and encodes it again.
func DecodeStored(b []byte) (again []byte, kept bool, err error) {
	r, err := decodeResponse(b)
	if err != nil {
		return nil, false, err
	}
	return r.encode(), r.Kept, nil
}

// EncodeStored encodes a response.
func EncodeStored(status int, header map[string][]string, body []byte) []byte {
	r := newStoredResponse(status, header, nil)
	r.Kept, r.Body = true, body
	return r.encode()
}

// DecodeJournal decodes a journal's file and encodes it again.
func DecodeJournal(b []byte) ([]byte, error) {
	e, err := decodeEntry(b)
	if err != nil {
		return nil, err
	}
	return e.encode()
}

// LocateJSON returns the value at a JSON pointer.
func LocateJSON(text []byte, pointer string) (value []byte, found bool, err error) {
	start, end, found, err := locate(text, pointer)
	return text[start:end], found, err
}

// StoreKey returns the key of a record in a database.
func StoreKey(k *RecordKey) string { return k.stored().Name }

// CodeLines returns how the page of codes begins the section of each code.
func CodeLines() map[string]string {
	lines := map[string]string{}
	for code, info := range codes {
		lines[string(code)] = fmt.Sprintf("%d, `%s`, `%v`: %s.", info.status, info.action, info.connect, info.title)
	}
	return lines
}

// LargeBodies is the channel of largeBodies.
var LargeBodies = largeBodies.all

// NewTurns returns how to take one of n turns, and how many parties are known.
func NewTurns(n int) (take func(ctx context.Context, party string) (func(), error), parties func() int) {
	t := &turns{all: make(chan struct{}, n)}
	return t.take, t.known
}

// LargeParties returns how many parties have a turn of largeBodies or wait for it.
func LargeParties() int { return largeBodies.known() }

func (t *turns) known() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.parties)
}

// Headers of replays, and those that pages may read.
var (
	StoredHeaderNames = storedHeaders
	ExposedHeaders    = exposed
)
