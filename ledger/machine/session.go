package machine

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// applyOpenSession hands out a session, or refuses. From a new session on,
// every older one of the stream is fenced (invariant 7).
func (m *Machine) applyOpenSession(tx Tx, c *openSessionCommand, out *Outcome) error {
	found, err := m.loadStream(tx, c.organization, c.vault, c.clientID)
	if err != nil {
		return err
	}
	s := &m.stream
	out.CreatedIndex, out.Last, out.Session = s.created, s.last, s.session
	current := s.session != 0 && s.session >= m.head.epochStart()
	switch i := slices.Index(s.attempts, c.attemptID); {
	case i == 0 && current: // the answer was lost, or the writer keeps its stream alive
		return m.putSession(tx, out)
	case i == 0: // the attempt is from before a restore
		out.Code = SessionExpired
		return nil
	case i > 0:
		out.Code = SessionFenced
		return nil
	}
	if c.expectedSession != 0 {
		if !found || c.expectedSession < m.head.epochStart() {
			out.Code = SessionExpired
			return nil
		}
		if c.expectedSession != s.session {
			out.Code = SessionFenced
			return nil
		}
	}
	if !found {
		full, err := m.organizationFull(tx, c.organization)
		if err != nil {
			return err
		}
		if full {
			out.Code = TooManyStreams
			return nil
		}
		if err := m.createStream(tx, c.organization); err != nil {
			return err
		}
	}
	s.fenced, s.session = s.session, m.head.index
	s.pushAttempt(c.attemptID)
	return m.putSession(tx, out)
}

func (m *Machine) putSession(tx Tx, out *Outcome) error {
	s := &m.stream
	s.lastSeen = m.head.time
	out.Code, out.CreatedIndex, out.Session, out.Stream = Committed, s.created, s.session, s.state()
	out.PreviousSession = s.fenced
	out.Config = m.head.config
	return m.putStream(tx)
}

// organizationFull reports whether the organization has as many streams as it
// may.
func (m *Machine) organizationFull(r Reader, organization []byte) (bool, error) {
	n, err := readCount(r, TableOrganizations, organization)
	return n >= m.head.config.MaxStreams, err
}

// readCount reads a table of counts. A missing row is 0, because a count that
// reaches 0 is deleted.
func readCount(r Reader, table Table, key []byte) (uint64, error) {
	b, err := r.Get(table, key)
	if err != nil || b == nil {
		return 0, err
	}
	d := decoder{rest: b}
	n := d.uvarint()
	return n, d.done("count")
}

// countStreams adds streams to the counts, or takes some away.
func (m *Machine) countStreams(tx Tx, organization []byte, delta int) error {
	if delta == 0 {
		return nil
	}
	n, err := readCount(tx, TableOrganizations, organization)
	if err != nil {
		return err
	}
	if less := uint64(max(0, -delta)); less > n || less > m.head.streams {
		return fmt.Errorf("%w: organization %q has fewer streams than were created", ErrCorrupt, organization)
	}
	n, m.head.streams = n+uint64(delta), m.head.streams+uint64(delta)
	if n == 0 {
		return tx.Delete(TableOrganizations, organization)
	}
	return tx.Put(TableOrganizations, organization, binary.AppendUvarint(nil, n))
}
