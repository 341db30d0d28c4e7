package valkey

import "time"

// Age makes what was read last that much older.
func (s *Store) Age(by time.Duration) { s.cache.at = s.cache.at.Add(-by) }
