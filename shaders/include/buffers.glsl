// Buffers addressed by pointer (VK_KHR_buffer_device_address): no descriptor sets, no binding-size limit.
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Floats4 { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Words4 { uvec4 v[]; };
