package apitest

import "strconv"

// Revision returns the resource version of the last change.
func (s *Server) Revision() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strconv.Itoa(len(s.log))
}
