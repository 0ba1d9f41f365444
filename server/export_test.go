package server

import "time"

// ReadsAtWork returns how many reads make their answers.
func (s *Server) ReadsAtWork() int64 { return s.admission.Gauges().Reads }

// SetPingEvery sets the interval of pings. It is called before there are streams.
func (s *Server) SetPingEvery(d time.Duration) { s.pingEvery = d }
