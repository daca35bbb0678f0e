// Shared by the kernels that turn logits into tokens: the order of candidates, sortable keys, and the layouts below.
//
//   partials  uint32 [L][chunks][4]: greatest logit of a chunk, its id, sum of exp(logit - greatest), 1 when one is NaN
//   params    uint32 [slots][16], the words P_* (floats as their bits); see labkit/engine/sampling.py
//   rows      uint32 [R][8], the words ROW_*; logit_rows uint32 [L]: the row of each line of logits, or NONE
const uint NONE = 0xFFFFFFFFu;
const uint PARAM_WORDS = 16, P_TEMPERATURE = 0, P_TOP_K = 1, P_TOP_P = 2, P_MIN_P = 3, P_REPETITION = 4, P_PRESENCE = 5,
           P_FREQUENCY = 6, P_SEED_LO = 7, P_SEED_HI = 8, P_N_BIAS = 9, P_FLAGS = 10;
const uint FLAG_IGNORE_EOS = 1u, FLAG_ADJUSTS = 2u;
const uint ROW_WORDS = 8, ROW_TOKEN = 0, ROW_SLOT = 1, ROW_POSITION = 2, ROW_FLAGS = 3, ROW_REMAINING = 4;
const uint ACTIVE = 1u, PROMPT = 2u;
const uint SEEN_IN_PROMPT = 0x80000000u, GENERATED = 0xFFFFu;  // of a word of counts
#define NEGATIVE_INFINITY uintBitsToFloat(0xFF800000u)
#define NOT_A_NUMBER uintBitsToFloat(0x7FC00000u)

// Whether candidate (a, i) comes before (b, j): greater value, ties to the lower id.
bool before(float a, uint i, float b, uint j) { return a > b || (a == b && i < j); }

// A uint that orders as the float does, and back.
uint sortable(float x) {
    const uint u = floatBitsToUint(x);
    return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}
float unsortable(uint key) { return uintBitsToFloat((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key); }
