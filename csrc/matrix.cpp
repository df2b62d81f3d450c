// Sizes and packing of panels; docs/kernels.md draws the layouts, codes.hpp reads them.
#include "matrix.hpp"

#include <algorithm>
#include <cstring>

#include "kernels.hpp"

namespace gemwright {

namespace {

struct Facts {
    const char* name;
    int64_t elements;      // of a stored block
    int64_t stored_bytes;  // of a stored block
    int64_t panel_bytes;   // of kPanel packed blocks
};

// In the order of Encoding.
constexpr Facts kFacts[] = {
    {"float32", 1, 4, 4 * kPanel},       {"bfloat16", 1, 2, 2 * kPanel},      {"q4_0", 32, 18, 18 * kPanel},
    {"q4_1", 32, 20, 20 * kPanel},       {"q5_0", 32, 22, 22 * kPanel},       {"q5_1", 32, 24, 24 * kPanel},
    {"q8_0", 32, 34, 34 * kPanel},       {"q4_k", 256, 144, 148 * kPanel},    {"q5_k", 256, 176, 180 * kPanel},
    {"q6_k", 256, 210, 210 * kPanel},
};

const Facts& facts(Encoding encoding) { return kFacts[static_cast<int>(encoding)]; }

// A group of 32 codes of one output as pairs: codes 2i in the low and 2i + 1 in the high half of pair i. A half of a word
// has 16 bits for codes of one parity, so that words are pairs, shifted and laid over each other.
struct Pairs {
    uint32_t pair[16];

    explicit Pairs(const uint8_t* codes) {
        for (int i = 0; i < 16; i++) pair[i] = static_cast<uint32_t>(codes[2 * i]) | static_cast<uint32_t>(codes[2 * i + 1]) << 16;
    }
};

void put_word(uint32_t word, int index, int64_t output, uint8_t* words) { std::memcpy(words + 4 * (kPanel * index + output), &word, 4); }

// Four words: pair 4c + j at bit 4j of word c.
void put_4_bits(const uint8_t* codes, int64_t output, uint8_t* words) {
    const Pairs p(codes);
    for (int c = 0; c < 4; c++) put_word(p.pair[4 * c] | p.pair[4 * c + 1] << 4 | p.pair[4 * c + 2] << 8 | p.pair[4 * c + 3] << 12, c, output, words);
}

// Five words: pair 3c + j at bit 1 + 5j of word c; bit c of pair 15 at bit 0 of word c.
void put_5_bits(const uint8_t* codes, int64_t output, uint8_t* words) {
    const Pairs p(codes);
    for (int c = 0; c < 5; c++)
        put_word((p.pair[15] >> c & 0x00010001) | p.pair[3 * c] << 1 | p.pair[3 * c + 1] << 6 | p.pair[3 * c + 2] << 11, c, output, words);
}

// Six words, three for each 16 inputs: of their pairs, 2c and 2c + 1 at bits 4 and 10 of word c; the low four bits of
// pair 6 at bit 0 of word 0, those of pair 7 at bit 0 of word 2, and the upper two of both at bits 0 and 2 of word 1.
void put_6_bits(const uint8_t* codes, int64_t output, uint8_t* words) {
    const Pairs p(codes);
    for (int half = 0; half < 2; half++) {
        const uint32_t* pair = p.pair + 8 * half;
        const uint32_t low[3] = {pair[6] & 0x000F000F, (pair[6] >> 4 & 0x00030003) | (pair[7] >> 4 & 0x00030003) << 2, pair[7] & 0x000F000F};
        for (int c = 0; c < 3; c++) put_word(low[c] | pair[2 * c] << 4 | pair[2 * c + 1] << 10, 3 * half + c, output, words);
    }
}

// Eight words: pairs 2c and 2c + 1 at bits 0 and 8 of word c. Signed codes get 128 added.
void put_8_bits(const uint8_t* codes, int64_t output, uint8_t* words) {
    for (int c = 0; c < 8; c++) {
        uint32_t word;
        std::memcpy(&word, codes + 4 * c, 4);
        put_word(((word & 0xFF0000FF) | (word & 0x0000FF00) << 8 | (word & 0x00FF0000) >> 8) ^ 0x80808080, c, output, words);
    }
}

// The 6-bit scale and min of one of the 8 groups of a q4_k or q5_k block.
void sub_scale(const uint8_t* packed, int group, uint8_t* scale, uint8_t* least) {
    if (group < 4) {
        *scale = packed[group] & 63;
        *least = packed[group + 4] & 63;
    } else {
        *scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4;
        *least = packed[group + 4] >> 4 | (packed[group] >> 6) << 4;
    }
}

void pack_block(Encoding encoding, const uint8_t* block, int64_t output, uint8_t* packed) {
    uint8_t codes[32];
    const auto put_half = [&](const uint8_t* from) {
        std::memcpy(packed + 2 * output, from, 2);
        packed += 2 * kPanel;
    };
    switch (encoding) {
        case Encoding::q8_0:
            put_half(block);
            put_8_bits(block + 2, output, packed);
            return;
        case Encoding::q4_0:
        case Encoding::q4_1: {
            put_half(block);
            if (encoding == Encoding::q4_1) put_half(block + 2);
            const uint8_t* nibbles = block + (encoding == Encoding::q4_1 ? 4 : 2);
            for (int k = 0; k < 16; k++) codes[k] = nibbles[k] & 15, codes[k + 16] = nibbles[k] >> 4;
            put_4_bits(codes, output, packed);
            return;
        }
        case Encoding::q5_0:
        case Encoding::q5_1: {
            put_half(block);
            if (encoding == Encoding::q5_1) put_half(block + 2);
            const uint8_t* nibbles = block + (encoding == Encoding::q5_1 ? 8 : 6);
            for (int part = 0; part < 4; part++) {
                // Eight codes at once, a byte each: nibbles from the low or high halves of bytes, fifth bits from one byte.
                uint64_t both;
                std::memcpy(&both, nibbles + 8 * (part % 2), 8);
                const uint64_t bits = nibbles[part - 4] * 0x0101010101010101u & 0x8040201008040201u;
                const uint64_t eight = (both >> (part < 2 ? 0 : 4) & 0x0F0F0F0F0F0F0F0Fu) | ((bits + 0x7F7F7F7F7F7F7F7Fu) & 0x8080808080808080u) >> 3;
                std::memcpy(codes + 8 * part, &eight, 8);
            }
            put_5_bits(codes, output, packed);
            return;
        }
        case Encoding::q4_k:
        case Encoding::q5_k: {
            const bool has_fifth = encoding == Encoding::q5_k;
            put_half(block);
            put_half(block + 2);
            const uint8_t *scales = block + 4, *fifth = block + 16, *nibbles = has_fifth ? block + 48 : block + 16;
            for (int group = 0; group < 8; group++) {
                sub_scale(scales, group, packed + output, packed + kPanel + output);
                packed += 2 * kPanel;
                for (int k = 0; k < 32; k++) {
                    const uint8_t both = nibbles[32 * (group / 2) + k];
                    codes[k] = group % 2 ? both >> 4 : both & 15;
                    if (has_fifth) codes[k] |= static_cast<uint8_t>((fifth[k] >> group & 1) << 4);
                }
                if (has_fifth) put_5_bits(codes, output, packed);
                else put_4_bits(codes, output, packed);
                packed += (has_fifth ? 20 : 16) * kPanel;
            }
            return;
        }
        case Encoding::q6_k: {
            const uint8_t *low = block, *high = block + 128, *scales = block + 192;
            put_half(block + 208);
            for (int group = 0; group < 8; group++) {
                const int half = group / 4, quarter = group % 4;
                packed[output] = scales[2 * group];
                packed[kPanel + output] = scales[2 * group + 1];
                packed += 2 * kPanel;
                for (int k = 0; k < 32; k++) {
                    const uint8_t both = low[64 * half + 32 * (quarter % 2) + k];
                    codes[k] = static_cast<uint8_t>((quarter < 2 ? both & 15 : both >> 4) | (high[32 * half + k] >> (2 * quarter) & 3) << 4);
                }
                put_6_bits(codes, output, packed);
                packed += 24 * kPanel;
            }
            return;
        }
        case Encoding::float32:
        case Encoding::bfloat16:
            return;  // have no blocks
    }
}

}  // namespace

int64_t panel_bytes(Encoding encoding, int64_t width) {
    const Facts& known = facts(encoding);
    if (width <= 0 || width % known.elements != 0) return -1;
    // Two inputs share a word in bfloat16.
    const int64_t padded = encoding == Encoding::bfloat16 ? (width + 1) / 2 * 2 : width;
    return padded / known.elements * known.panel_bytes;
}

int64_t stored_row_bytes(Encoding encoding, int64_t width) {
    return width / facts(encoding).elements * facts(encoding).stored_bytes;
}

void pack_panel(Encoding encoding, int64_t width, const uint8_t* stored, int64_t row_bytes, int64_t num_rows, uint8_t* panel) {
    const Facts& known = facts(encoding);
    const bool has_padding = num_rows < kPanel || (encoding == Encoding::bfloat16 && width % 2 != 0);
    if (has_padding) std::memset(panel, 0, static_cast<size_t>(std::max<int64_t>(0, panel_bytes(encoding, width))));
    // A cache line of every row at a time: rows may lie so that all their lines share a place in the first cache.
    if (encoding == Encoding::float32) {
        for (int64_t begin = 0; begin < width; begin += 16)
            for (int64_t output = 0; output < num_rows; output++)
                for (int64_t k = begin; k < std::min(width, begin + 16); k++) std::memcpy(panel + 4 * (kPanel * k + output), stored + output * row_bytes + 4 * k, 4);
        return;
    }
    if (encoding == Encoding::bfloat16) {
        for (int64_t begin = 0; begin < width; begin += 32)
            for (int64_t output = 0; output < num_rows; output++)
                for (int64_t k = begin; k < std::min(width, begin + 32); k += 2)
                    std::memcpy(panel + 4 * (kPanel * (k / 2) + output), stored + output * row_bytes + 2 * k, k + 1 < width ? 4 : 2);
        return;
    }
    // A few blocks of every row, so that what is written stays in the first cache until it is whole.
    const int64_t num_blocks = width / known.elements, step = known.elements == 32 ? 16 : 2;
    for (int64_t begin = 0; begin < num_blocks; begin += step)
        for (int64_t output = 0; output < num_rows; output++)
            for (int64_t block = begin; block < std::min(num_blocks, begin + step); block++)
                pack_block(encoding, stored + output * row_bytes + block * known.stored_bytes, output, panel + block * known.panel_bytes);
}

bool find_encoding(const char* name, Encoding* encoding) {
    for (size_t i = 0; i < sizeof kFacts / sizeof *kFacts; i++)
        if (std::strcmp(kFacts[i].name, name) == 0) {
            *encoding = static_cast<Encoding>(i);
            return true;
        }
    return false;
}

// A block of 256 inputs of a panel, unpacked, and the sums of kRowsAtOnce rows; see linear.hpp.
int64_t multiply_scratch_bytes(int64_t) { return 256 * kPanel * 4 + 64 * kPanel * 4 + 4096; }

}  // namespace gemwright
