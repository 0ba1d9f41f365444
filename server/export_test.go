package server

import (
	"time"

	"github.com/seqledger/seqledger/ledger/machine"
)

// ReadsAtWork returns how many reads make their answers.
func (s *Server) ReadsAtWork() int64 { return s.admission.Gauges().Reads }

// SetPingEvery sets the interval of pings. It is called before there are streams.
func (s *Server) SetPingEvery(d time.Duration) { s.pingEvery = d }

// SetCutOff sets after how much time without a leader streams end. It is called before there are any.
func (s *Server) SetCutOff(d time.Duration) { s.cutOff = d }

// MaxResultRoom is the room for the result of a write with one operation and a proof.
const MaxResultRoom = maxResultBytes + machine.MaxKeyBytes + maxProofBytes + maxVersionBytes

// UnknownConnections returns how many connections no caller was authenticated on.
func UnknownConnections(s *Server) int64 { return s.admission.Gauges().UnknownConnections }

// DeafConnection is deafConnection, for tests of several nodes.
var DeafConnection = deafConnection
