package server

import "time"

// ReadsAtWork returns how many reads make their answers.
func (s *Server) ReadsAtWork() int64 { return s.admission.Gauges().Reads }

// SetSignEvery sets how often a stream checks whether a keepalive is due. It is called before
// there are streams.
func (s *Server) SetSignEvery(d time.Duration) { s.signEvery = d }
