// Rows of a step: uint32 [R][8]: token, slot, position, flags, remaining, 0, 0, 0, read four words at a time.
const uint ACTIVE = 1;  // bit of flags: the row writes its key and value, and attends

uvec4 load_row(Words4 rows, uint r) { return rows.v[r * 2]; }  // (token, slot, position, flags)
