package server

import (
	"time"

	"github.com/seqledger/seqledger/ledger/machine"
)

// ReadsAtWork returns how many reads make their answers.
func (s *Server) ReadsAtWork() int64 { return s.admission.Gauges().Reads }

// SetPingEvery sets the interval of pings. It is called before there are streams.
func (s *Server) SetPingEvery(d time.Duration) { s.pingEvery = d }

// MaxResultRoom is the room for the result of a write with one operation and a proof.
const MaxResultRoom = maxResultBytes + machine.MaxKeyBytes + maxProofBytes + maxVersionBytes
