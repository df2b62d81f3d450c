// Sizes and packing of panels; the layouts are drawn in linear.hpp, which reads them.
#include "matrix.hpp"

#include <algorithm>
#include <cstring>

#include "half.hpp"
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

// Codes of one output's group of 32, and where its bytes lie in a packed group.
using Codes = uint8_t[32];

// Nibbles: word c of the output holds k = 8c .. 8c + 7, k = 8c + 2j + h at bit 16h + 4j.
void put_nibbles(const Codes& codes, int64_t output, uint8_t* at) {
    for (int c = 0; c < 4; c++) {
        uint32_t word = 0;
        for (int j = 0; j < 4; j++)
            for (int h = 0; h < 2; h++) word |= static_cast<uint32_t>(codes[8 * c + 2 * j + h] & 15) << (16 * h + 4 * j);
        std::memcpy(at + 4 * (kPanel * c + output), &word, 4);
    }
}

// Fifth bits: k = 2i + h at bit 16h + i.
void put_fifth_bits(const Codes& codes, int64_t output, uint8_t* at) {
    uint32_t word = 0;
    for (int k = 0; k < 32; k++) word |= static_cast<uint32_t>(codes[k] >> 4 & 1) << (16 * (k % 2) + k / 2);
    std::memcpy(at + 4 * output, &word, 4);
}

// Fifth and sixth bits: k = 16p + 2i + h in word p at bit 16h + 2i.
void put_sixth_bits(const Codes& codes, int64_t output, uint8_t* at) {
    for (int p = 0; p < 2; p++) {
        uint32_t word = 0;
        for (int k = 0; k < 16; k++) word |= static_cast<uint32_t>(codes[16 * p + k] >> 4 & 3) << (16 * (k % 2) + 2 * (k / 2));
        std::memcpy(at + 4 * (kPanel * p + output), &word, 4);
    }
}

// Bytes: word c of the output holds k = 4c, 4c + 2, 4c + 1, 4c + 3.
void put_bytes(const uint8_t* codes, int64_t output, uint8_t* at) {
    for (int c = 0; c < 8; c++) {
        const uint8_t word[4] = {codes[4 * c], codes[4 * c + 2], codes[4 * c + 1], codes[4 * c + 3]};
        std::memcpy(at + 4 * (kPanel * c + output), word, 4);
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
    Codes codes;
    const auto put_half = [&](const uint8_t* from, uint8_t* at) { std::memcpy(at + 2 * output, from, 2); };
    switch (encoding) {
        case Encoding::q8_0:
            put_half(block, packed);
            put_bytes(block + 2, output, packed + 64);
            return;
        case Encoding::q4_0:
        case Encoding::q4_1:
        case Encoding::q5_0:
        case Encoding::q5_1: {
            const bool has_min = encoding == Encoding::q4_1 || encoding == Encoding::q5_1;
            const bool has_fifth = encoding == Encoding::q5_0 || encoding == Encoding::q5_1;
            put_half(block, packed);
            block += 2, packed += 64;
            if (has_min) {
                put_half(block, packed);
                block += 2, packed += 64;
            }
            uint32_t fifth = 0;
            if (has_fifth) std::memcpy(&fifth, block, 4), block += 4;
            for (int k = 0; k < 16; k++) {
                codes[k] = static_cast<uint8_t>((block[k] & 15) | (fifth >> k & 1) << 4);
                codes[k + 16] = static_cast<uint8_t>(block[k] >> 4 | (fifth >> (k + 16) & 1) << 4);
            }
            if (has_fifth) {
                put_fifth_bits(codes, output, packed);
                packed += 4 * kPanel;
            }
            put_nibbles(codes, output, packed);
            return;
        }
        case Encoding::q4_k:
        case Encoding::q5_k: {
            const bool has_fifth = encoding == Encoding::q5_k;
            put_half(block, packed);
            put_half(block + 2, packed + 64);
            packed += 128;
            const uint8_t *scales = block + 4, *fifth = block + 16, *nibbles = has_fifth ? block + 48 : block + 16;
            for (int group = 0; group < 8; group++) {
                sub_scale(scales, group, packed + output, packed + 32 + output);
                for (int k = 0; k < 32; k++) {
                    const uint8_t both = nibbles[32 * (group / 2) + k];
                    codes[k] = group % 2 ? both >> 4 : both & 15;
                    if (has_fifth) codes[k] |= static_cast<uint8_t>((fifth[k] >> group & 1) << 4);
                }
                packed += 64;
                if (has_fifth) {
                    put_fifth_bits(codes, output, packed);
                    packed += 4 * kPanel;
                }
                put_nibbles(codes, output, packed);
                packed += 16 * kPanel;
            }
            return;
        }
        case Encoding::q6_k: {
            const uint8_t *low = block, *high = block + 128, *scales = block + 192;
            put_half(block + 208, packed);
            packed += 64;
            for (int group = 0; group < 8; group++) {
                const int half = group / 4, quarter = group % 4;
                packed[output] = scales[2 * group];
                packed[32 + output] = scales[2 * group + 1];
                for (int k = 0; k < 32; k++) {
                    const uint8_t both = low[64 * half + 32 * (quarter % 2) + k];
                    codes[k] = static_cast<uint8_t>((quarter < 2 ? both & 15 : both >> 4) | (high[32 * half + k] >> (2 * quarter) & 3) << 4);
                }
                put_nibbles(codes, output, packed + 64);
                put_sixth_bits(codes, output, packed + 64 + 16 * kPanel);
                packed += 64 + 24 * kPanel;
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
    if (num_rows < kPanel || (encoding == Encoding::bfloat16 && width % 2)) std::memset(panel, 0, static_cast<size_t>(panel_bytes(encoding, width)));
    for (int64_t output = 0; output < num_rows; output++) {
        const uint8_t* row = stored + output * row_bytes;
        if (encoding == Encoding::float32) {
            for (int64_t k = 0; k < width; k++) std::memcpy(panel + 4 * (kPanel * k + output), row + 4 * k, 4);
        } else if (encoding == Encoding::bfloat16) {
            for (int64_t k = 0; k < width; k++) std::memcpy(panel + 4 * (kPanel * (k / 2) + output) + 2 * (k % 2), row + 2 * k, 2);
        } else {
            for (int64_t block = 0; block < width / known.elements; block++)
                pack_block(encoding, row + block * known.stored_bytes, output, panel + block * known.panel_bytes);
        }
    }
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
