package server

// ReadsAtWork returns how many reads make their answers.
func (s *Server) ReadsAtWork() int64 { return s.admission.Gauges().Reads }
