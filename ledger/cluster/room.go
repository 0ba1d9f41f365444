package cluster

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// Room says whether the disk of a node can take more writes. The server decides that, because it has the reserve
// below which it refuses writes. See [Node.WatchRoom].
type Room uint8

// Rooms of a disk, from the best to the worst.
const (
	RoomUnknown Room = iota
	RoomEnough       // the reserve is free
	RoomScarce       // it is free again after it was not, and twice the reserve is not
	RoomNone         // the reserve is not free: a leader refuses writes
)

// Low reports whether a node should lead only if no other node can.
func (r Room) Low() bool { return r >= RoomScarce }

// WatchRoom sets the function that measures the free space on this node's disk: whether it is below the reserve, and
// whether it is ample, which is twice the reserve. A leader whose disk is below the reserve hands the leadership over,
// and a node whose disk was below it and is not ample yet leads only if no other node can. The function is called about
// once a second by one goroutine, which may wait for the disk.
func (n *Node) WatchRoom(measure func() (below, ample bool)) { n.measure.Store(&measure) }

// measureRoom measures the disk of this node. Only the comparisons call it, from one goroutine.
func (n *Node) measureRoom() Room {
	measure := n.measure.Load()
	if measure == nil {
		return RoomUnknown
	}
	below, ample := (*measure)()
	room := RoomEnough
	switch {
	case below:
		room = RoomNone
	case !ample && n.room.Low():
		room = RoomScarce
	}
	n.room = room
	_ = n.log.Hesitate(room.Low()) // it fails only once the log has stopped
	return room
}

// roomHeader tells the room on a node's disk beside diskFreeHeader.
const roomHeader = "Seqledger-Disk-Room"

func tellRoom(h http.Header, r Room) { h.Set(roomHeader, strconv.Itoa(int(r))) }

func toldRoom(h http.Header) Room {
	r, err := strconv.ParseUint(h.Get(roomHeader), 10, 8)
	if err != nil || Room(r) > RoomNone {
		return RoomUnknown
	}
	return Room(r)
}

// yieldInterval is the time between two attempts to hand over the leadership because of a full disk: writes wait while
// an attempt lasts.
const yieldInterval = 10 * time.Second

// yield hands the leadership over if the disk of this leader has no room for writes and that of another voter has. Only
// tendLoop calls it.
func (n *Node) yield(s *Status) {
	to := s.roomier()
	if to == 0 || time.Since(n.yielded) < yieldInterval {
		return
	}
	n.yielded = time.Now()
	ctx, cancel := context.WithTimeout(n.host.Stopping, changePatience)
	defer cancel()
	log := n.host.Logger.With("to node", to)
	if err := n.transfer(ctx, to); err != nil {
		log = log.With("error", err)
	}
	log.Warn("the disk of this node has less free space than its reserve, and the leadership is handed over")
}
