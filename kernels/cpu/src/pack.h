// Weights into and out of the packed layout of layout.h.
#pragma once
#include "c_api.h"
#include "layout.h"

namespace ramet {

inline PackedMatrix as_packed(const ramet_matrix& matrix) {
    return {matrix.num_outputs, matrix.num_inputs, matrix.format, matrix.is_planes, matrix.data};
}

// fp32 values of one row; out [num_inputs]. `scratch` has room for the planes of a channel block; it is used if the matrix lies
// in groups.
void unpack_row(const PackedMatrix& matrix, int row, WeightChunk* scratch, float* out);

}  // namespace ramet
