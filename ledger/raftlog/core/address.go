package core

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	pb "go.etcd.io/raft/v3/raftpb"
)

// MaxAddressBytes is the maximum length of each address of a node.
const MaxAddressBytes = 255

// Address says where a node can be reached.
type Address struct {
	ID uint64
	// Nonce is a random value that the node chose before it asked for its id. A node that asks again, because it did
	// not receive the response, gets the same id.
	Nonce  [16]byte
	Peer   string // host and port for the other nodes
	Client string // host and port for clients; may be empty
}

// append appends the id, the nonce, and two length-prefixed strings.
func (a *Address) append(b []byte) []byte {
	b = append(binary.BigEndian.AppendUint64(b, a.ID), a.Nonce[:]...)
	for _, text := range []string{a.Peer, a.Client} {
		b = append(append(b, byte(len(text))), text...)
	}
	return b
}

func decodeAddress(b []byte) (a Address, rest []byte, err error) {
	const head = 8 + len(a.Nonce)
	if len(b) < head {
		return a, nil, errors.New("core: an address is cut off")
	}
	a.ID = binary.BigEndian.Uint64(b)
	copy(a.Nonce[:], b[8:])
	b = b[head:]
	for _, text := range []*string{&a.Peer, &a.Client} {
		if len(b) == 0 || len(b) < 1+int(b[0]) {
			return a, nil, errors.New("core: an address is cut off")
		}
		*text, b = string(b[1:1+int(b[0])]), b[1+int(b[0]):]
	}
	return a, b, nil
}

func decodeAddresses(b []byte) (list []Address, rest []byte, err error) {
	if len(b) == 0 || b[0] == 0 {
		return nil, nil, errors.New("core: the list of addresses is cut off or empty")
	}
	count := int(b[0])
	for b = b[1:]; count > 0; count-- {
		var a Address
		if a, b, err = decodeAddress(b); err != nil {
			return nil, nil, err
		}
		list = append(list, a)
	}
	return list, b, nil
}

// Validate returns an error if the address is invalid.
func (a *Address) Validate() error {
	switch {
	case a.ID == 0:
		return errors.New("core: an address of node 0")
	case len(a.Peer) > MaxAddressBytes || len(a.Client) > MaxAddressBytes:
		return fmt.Errorf("core: an address of node %d has more than %d bytes", a.ID, MaxAddressBytes)
	case !utf8.ValidString(a.Peer) || !utf8.ValidString(a.Client):
		return fmt.Errorf("core: an address of node %d is no text", a.ID)
	}
	return nil
}

// AppendTo adds the address to a membership change, as the address of the node that the change adds or updates.
func (a *Address) AppendTo(change *pb.ConfChangeV2) {
	change.Context = a.append(change.GetContext())
}

// Address returns the address of a node.
func (m *Members) Address(id uint64) (Address, bool) {
	for _, a := range m.Addresses {
		if a.ID == id {
			return a, true
		}
	}
	return Address{}, false
}

// validateAddresses checks that the addresses are sorted, so that equal members have equal encodings.
func (m *Members) validateAddresses() error {
	last := uint64(0)
	for i := range m.Addresses {
		a := &m.Addresses[i]
		if err := a.Validate(); err != nil {
			return err
		}
		if a.ID <= last || !m.Has(a.ID) {
			return fmt.Errorf("core: the address of node %d is out of order, or it is no member", a.ID)
		}
		last = a.ID
	}
	return nil
}

// addressesAfter returns the addresses after a change. The change's context holds the addresses of the nodes that it
// names.
func (m *Members) addressesAfter(change *pb.ConfChangeV2, next *Members) ([]Address, error) {
	var list []Address
	for _, a := range m.Addresses {
		if next.Has(a.ID) {
			list = append(list, a)
		}
	}
	for b := change.GetContext(); len(b) > 0; {
		a, rest, err := decodeAddress(b)
		if err != nil {
			return nil, err
		}
		b = rest
		named := slices.ContainsFunc(change.GetChanges(), func(c *pb.ConfChangeSingle) bool {
			return c.GetNodeId() == a.ID
		})
		if !named || !next.Has(a.ID) {
			return nil, fmt.Errorf("core: the change has an address of node %d and does not name it", a.ID)
		}
		list = slices.DeleteFunc(list, func(old Address) bool { return old.ID == a.ID })
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b Address) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}
