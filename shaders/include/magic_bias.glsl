// Magic-bias conversion: an integer sum that starts at the bits of 1.5 * 2^23 is, read as a float and with 1.5 * 2^23
// taken off, the float of that sum: exact for magnitudes up to 2^22, one addition in place of a conversion.
const int MAGIC_BIAS = 0x4B400000;
float from_magic(int biased) { return intBitsToFloat(biased) - 12582912.0; }
